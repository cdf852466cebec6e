//! Divides the bandwidth among virtual fabrics.
//!
//! Virtual fabrics of one QOSGroup share what the group has; one with QOS of its own has its own
//! share; all without QoS have one share together. What those with `Bandwidth` leave is divided
//! equally among the others, except that those without QoS get at least 5 %. `HighPriority` is
//! outside this division, and so are virtual fabrics in standby.

use super::xml::Fault;
use super::{Bandwidth, Reason, VirtualFabric};

/// Least share of virtual fabrics without QoS, percent.
const WITHOUT_QOS_MIN: u32 = 5;

/// Virtual fabrics that have a share together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sharers {
    /// Their positions, ascending.
    pub fabrics: Vec<usize>,
    /// Whether they have no QoS.
    pub without_qos: bool,
    /// What the file states.
    pub bandwidth: Bandwidth,
    /// Their part of the bandwidth that high priority leaves, in hundredths of a percent; 0 with
    /// high priority.
    pub share: u32,
}

/// The shares of all virtual fabrics that pass traffic, by the order of the first of each. The
/// stated ones must leave enough for the others, as [`check`] verifies.
pub fn shares(fabrics: &[VirtualFabric]) -> Vec<Sharers> {
    let mut all: Vec<Sharers> = Vec::new();
    for (at, fabric) in fabrics.iter().enumerate().filter(|(_, fabric)| !fabric.standby) {
        let group = fabric.qos.as_ref().map(|qos| qos.group.as_deref());
        let joined = all.iter_mut().find(|each| {
            let first = fabrics[each.fabrics[0]].qos.as_ref().map(|qos| qos.group.as_deref());
            first == group && group != Some(None)
        });
        match joined {
            Some(sharers) => sharers.fabrics.push(at),
            None => all.push(Sharers {
                fabrics: vec![at],
                without_qos: group.is_none(),
                bandwidth: fabric.qos.as_ref().map_or(Bandwidth::Rest, |qos| qos.bandwidth),
                share: 0,
            }),
        }
    }
    let mut rest: u32 = 100 * 100;
    for sharers in &mut all {
        if let Bandwidth::Percent { percent, .. } = sharers.bandwidth {
            sharers.share = u32::from(percent) * 100;
            rest = rest.saturating_sub(sharers.share);
        }
    }
    let of_rest = |each: &&mut Sharers| each.bandwidth == Bandwidth::Rest;
    let mut count = all.iter_mut().filter(of_rest).count() as u32;
    let without_qos = all.iter_mut().filter(of_rest).find(|each| each.without_qos);
    if let Some(sharers) = without_qos {
        sharers.share = (rest / count).max(WITHOUT_QOS_MIN * 100);
        rest = rest.saturating_sub(sharers.share);
        count -= 1;
    }
    for sharers in all.iter_mut().filter(|each| of_rest(each) && !each.without_qos) {
        sharers.share = rest / count;
    }
    all
}

/// Checks that the stated shares are not more than 100 % in all, and leave 1 % for each other one
/// and 5 % for those without QoS.
pub(super) fn check(fabrics: &[VirtualFabric]) -> Result<(), Fault> {
    let all = shares(fabrics);
    let stated = all.iter().filter_map(|sharers| match sharers.bandwidth {
        Bandwidth::Percent { percent, line } => Some((u32::from(percent), line)),
        _ => None,
    });
    let total = stated.clone().map(|(percent, _)| percent).sum();
    let needed: u32 = all
        .iter()
        .filter(|sharers| sharers.bandwidth == Bandwidth::Rest)
        .map(|sharers| if sharers.without_qos { WITHOUT_QOS_MIN } else { 1 })
        .sum();
    let limit = 100u32.saturating_sub(needed);
    let mut sum = 0;
    for (percent, line) in stated {
        sum += percent;
        if sum > limit {
            let reason = match needed {
                _ if total > 100 => Reason::Bandwidth { total },
                needed => Reason::BandwidthLeft { total, needed },
            };
            return Err((line, reason));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Qos;
    use super::*;

    /// A virtual fabric: with QoS its group, if any, and its bandwidth.
    fn fabric(qos: Option<(Option<&str>, Bandwidth)>) -> VirtualFabric {
        let qos = qos.map(|(group, bandwidth)| Qos {
            group: group.map(str::to_owned),
            bandwidth,
            ..Qos::default()
        });
        VirtualFabric { qos, ..VirtualFabric::default() }
    }

    fn percent(percent: u8) -> Bandwidth {
        Bandwidth::Percent { percent, line: usize::from(percent) }
    }

    fn divided(fabrics: &[VirtualFabric]) -> Vec<(Vec<usize>, u32)> {
        shares(fabrics).into_iter().map(|each| (each.fabrics, each.share)).collect()
    }

    #[test]
    fn the_rest_is_shared_by_those_without_bandwidth() {
        let fabrics = [
            fabric(Some((Some("bulk"), percent(40)))),
            fabric(None),
            fabric(Some((None, Bandwidth::Rest))),
            fabric(Some((Some("bulk"), percent(40)))),
            fabric(Some((None, Bandwidth::High))),
            VirtualFabric { standby: true, ..fabric(Some((None, percent(90)))) },
            fabric(None),
            fabric(Some((Some("free"), Bandwidth::Rest))),
        ];
        let expected = [
            (vec![0, 3], 4000),
            (vec![1, 6], 2000),
            (vec![2], 2000),
            (vec![4], 0),
            (vec![7], 2000),
        ];
        assert_eq!(divided(&fabrics), expected);
    }

    #[test]
    fn those_without_qos_get_five_percent_at_least() {
        let few =
            [fabric(Some((None, percent(92)))), fabric(None), fabric(Some((None, percent(1))))];
        assert_eq!(divided(&few)[1], (vec![1], 700));
        let rest = || fabric(Some((None, Bandwidth::Rest)));
        let many = [fabric(Some((None, percent(90)))), fabric(None), rest(), rest()];
        assert_eq!(divided(&many)[1..], [(vec![1], 500), (vec![2], 250), (vec![3], 250)]);
    }

    #[test]
    fn too_much_is_refused_where_it_becomes_too_much() {
        let of = |n| fabric(Some((None, percent(n))));
        assert_eq!(check(&[of(40), of(60)]), Ok(()));
        assert_eq!(check(&[of(40), of(61), of(7)]), Err((61, Reason::Bandwidth { total: 108 })));
        let without = Err((60, Reason::BandwidthLeft { total: 100, needed: 5 }));
        assert_eq!(check(&[of(40), fabric(None), of(60)]), without);
        assert_eq!(check(&[of(40), fabric(None), of(55)]), Ok(()));
    }

    proptest! {
        #[test]
        fn accepted_shares_add_up_to_no_more_than_all(
            kinds in proptest::collection::vec((0u8..4, 1u8..60, 0u8..3), 1..9)
        ) {
            let groups = ["a", "b", "c"];
            let fabrics: Vec<VirtualFabric> = kinds.iter().map(|&(kind, n, group)| match kind {
                0 => fabric(None),
                1 => fabric(Some((None, percent(n)))),
                2 => fabric(Some((None, Bandwidth::Rest))),
                // All of a group have what the group has.
                _ => fabric(Some((Some(groups[usize::from(group)]), percent(group * 7 + 1)))),
            }).collect();
            let all = shares(&fabrics);
            let mut positions: Vec<usize> =
                all.iter().flat_map(|each| each.fabrics.iter().copied()).collect();
            positions.sort_unstable();
            prop_assert_eq!(positions, (0..fabrics.len()).collect::<Vec<_>>());
            if check(&fabrics).is_ok() {
                let total: u32 = all.iter().map(|each| each.share).sum();
                prop_assert!(total <= 10_000);
                prop_assert!(all.iter().all(|each| each.share >= 100));
                let has_rest = all.iter().any(|each| each.bandwidth == Bandwidth::Rest);
                prop_assert!(!has_rest || total > 9_990, "{total}");
            }
        }
    }
}
