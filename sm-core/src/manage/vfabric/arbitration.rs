//! VL arbitration by the bandwidth of virtual fabrics (IBA 7.6.9).
//!
//! The file divides bandwidth among virtual fabrics, ports divide it among VLs. A share goes in
//! equal parts to the VLs that the SLs of its virtual fabrics map to; shares of one VL add up. VLs
//! of high priority are in the high-priority table. All other VLs get the least weight, so that no
//! packet waits forever.

use ib_mad::types::Sl;
use sm_config::opafm::{self, Bandwidth, bandwidth};
use sm_config::{PortQos, VL_ARB_ENTRIES};

/// Limit of high priority, in 4 KiB: so much is sent before a packet of low priority that waits.
/// With packets of 4 KiB, low priority keeps a tenth of a link.
pub const HIGH_LIMIT: u8 = 10;

/// Weight of a VL in the high-priority table: a packet of 4 KiB. The unit is 64 bytes.
const HIGH_WEIGHT: u8 = 64;
/// Wanted weight of the least share: a packet of 4 KiB, so that packets, which are sent whole, do
/// not distort it.
const LEAST_WEIGHT: u64 = 64;
/// Greatest weight of an entry.
const WEIGHT_MAX: u64 = 255;
/// Number of data VLs.
const DATA_VLS: usize = 15;

/// Entries of one priority: VL and weight.
type Entries = [(u8, u8); VL_ARB_ENTRIES];

/// The bandwidth that virtual fabrics ask for, by SL.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arbitration {
    claims: Vec<Claim>,
    /// Line of the first virtual fabric that asks for something.
    line: usize,
}

/// A share of virtual fabrics, and their SLs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Claim {
    /// Bit set.
    sls: u16,
    /// In hundredths of a percent; `None` with high priority.
    share: Option<u32>,
}

/// The lanes of a port.
#[derive(Clone, Copy, Debug)]
pub struct PortLanes {
    /// VLs by SL, as bit sets.
    pub vls: [u16; 16],
    /// Bits of an SL that the routing engine decides.
    pub engine_sls: u8,
    /// Number of data VLs.
    pub count: u8,
    /// Numbers of entries of low and high priority.
    pub capacity: (u8, u8),
}

impl Arbitration {
    /// What a file asks for whose virtual fabrics have these SLs for unicast and multicast; `None`
    /// if it leaves arbitration open.
    pub(super) fn new(file: &opafm::OpaFm, sls: &[(Sl, Sl)]) -> Option<Self> {
        file.arbitrates().then(|| {
            let claims = bandwidth::shares(&file.virtual_fabrics).into_iter().map(|sharers| {
                let sls = sharers.fabrics.iter().map(|&at| sls[at]);
                Claim {
                    sls: sls.fold(0, |all, (base, multicast)| {
                        all | 1 << base.get() | 1 << multicast.get()
                    }),
                    share: (sharers.bandwidth != Bandwidth::High).then_some(sharers.share),
                }
            });
            let asks = |fabric: &&opafm::VirtualFabric| {
                let bandwidth = fabric.qos.as_ref().map(|qos| qos.bandwidth);
                !fabric.standby && bandwidth.is_some_and(|bandwidth| bandwidth != Bandwidth::Rest)
            };
            let first = file.virtual_fabrics.iter().find(asks);
            Self { claims: claims.collect(), line: first.map_or(1, |fabric| fabric.line) }
        })
    }

    /// Line of the first virtual fabric with bandwidth or priority.
    pub fn line(&self) -> usize {
        self.line
    }

    /// The limit of high priority for ports with these tables.
    pub fn high_limit(&self, own: &PortQos) -> u8 {
        let has_high = self.claims.iter().any(|claim| claim.share.is_none());
        if has_high && !own.has_high_limit { HIGH_LIMIT } else { own.high_limit }
    }

    /// Entries of low and of high priority for a port.
    pub fn entries(&self, lanes: &PortLanes) -> (Entries, Entries) {
        let data_vls = lanes.count.min(DATA_VLS as u8);
        let (mut shares, mut high) = ([0; DATA_VLS], 0u16);
        for claim in &self.claims {
            let vls = lanes.of(claim.sls) & ((1 << data_vls) - 1);
            let Some(share) = claim.share else {
                high |= vls;
                continue;
            };
            // In finer units than the share, since it may be divided by up to 15.
            let part = u64::from(share) * 1000 / u64::from(vls.count_ones().max(1));
            let of_claim = (0..DATA_VLS).filter(|vl| vls >> vl & 1 == 1);
            of_claim.for_each(|vl| shares[vl] += part);
        }
        let (low_capacity, high_capacity) = lanes.capacity;
        let in_high = (0..data_vls).filter(|vl| high >> vl & 1 == 1);
        let mut high_entries = [(0, 0); VL_ARB_ENTRIES];
        let room = high_entries.iter_mut().take(high_capacity.into());
        room.zip(in_high).for_each(|(entry, vl)| *entry = (vl, HIGH_WEIGHT));
        let is_low = |vl: &u8| shares[usize::from(*vl)] > 0 || high >> vl & 1 == 0;
        let low: Vec<(u8, u64)> =
            (0..data_vls).filter(is_low).map(|vl| (vl, shares[usize::from(vl)])).collect();
        (low_entries(&low, low_capacity.into()), high_entries)
    }
}

impl PortLanes {
    /// The VLs of packets whose virtual fabric has one of these SLs: the engine may have put their
    /// paths on others.
    fn of(&self, sls: u16) -> u16 {
        let fixed = !self.engine_sls & 0xF;
        let is_like = |sl: u8| (0..16u8).any(|of| sls >> of & 1 == 1 && (sl ^ of) & fixed == 0);
        (0..16u8).filter(|&sl| is_like(sl)).fold(0, |vls, sl| vls | self.vls[usize::from(sl)])
    }
}

/// Entries in proportion to shares, at most `capacity`. A VL with share 0 has weight 1. A share
/// beyond the greatest weight has several entries, apart from each other.
fn low_entries(shares: &[(u8, u64)], capacity: usize) -> Entries {
    let mut vls: Vec<(u8, u64)> = shares.to_vec();
    let capacity = capacity.min(VL_ARB_ENTRIES);
    if vls.len() > capacity {
        // Against IBA 7.6.9: a port has as many entries as data VLs.
        vls.sort_by_key(|&(vl, share)| (std::cmp::Reverse(share), vl));
        vls.truncate(capacity);
    }
    let total: u64 = vls.iter().map(|(_, share)| share).sum();
    let weight = |share: u64, sum: u64| match share {
        0 => 1,
        _ => ((u128::from(share) * u128::from(sum) * 2 / u128::from(total)).div_ceil(2) as u64)
            .max(1),
    };
    let count = |weight: u64| weight.div_ceil(WEIGHT_MAX) as usize;
    let fits = |sum: u64| {
        vls.iter().map(|&(_, share)| count(weight(share, sum))).sum::<usize>() <= capacity
    };
    // The sum of weights at which the least share has its wanted weight, or the greatest that fits.
    let least = vls.iter().map(|(_, share)| *share).filter(|&share| share > 0).min();
    let wanted = least.map_or(0, |least| (total * LEAST_WEIGHT).div_ceil(least));
    let (mut sum, mut beyond) = (0, wanted.min(WEIGHT_MAX * VL_ARB_ENTRIES as u64) + 1);
    while beyond - sum > 1 {
        let middle = sum + (beyond - sum) / 2;
        if fits(middle) { sum = middle } else { beyond = middle }
    }
    let weighed = vls.iter().map(|&(vl, share)| {
        let weight = weight(share, sum);
        (vl, weight, count(weight))
    });
    spread(&weighed.collect::<Vec<_>>())
}

/// Spreads the entries of each VL evenly: VL, weight in all and number of entries.
fn spread(vls: &[(u8, u64, usize)]) -> Entries {
    let total: usize = vls.iter().map(|&(.., count)| count).sum();
    let mut entries = [(0, 0); VL_ARB_ENTRIES];
    let mut placed = vec![0usize; vls.len()];
    for (at, entry) in entries.iter_mut().take(total).enumerate() {
        // The VL that is furthest behind its even progress.
        let behind = |i: &usize| {
            let (_, _, count) = vls[*i];
            ((at + 1) * count).cast_signed() - (placed[*i] * total).cast_signed()
        };
        let open = (0..vls.len()).filter(|&i| placed[i] < vls[i].2);
        let Some(next) = open.rev().max_by_key(behind) else { break };
        let (vl, weight, count) = vls[next];
        let (done, count) = (placed[next] as u64, count as u64);
        // Parts of the weight that differ by 1 at most.
        let part = (done + 1) * weight / count - done * weight / count;
        *entry = (vl, part as u8);
        placed[next] += 1;
    }
    entries
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const IDENTITY: [u16; 16] =
        [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 0];

    fn arbitration(claims: Vec<Claim>) -> Arbitration {
        Arbitration { claims, line: 1 }
    }

    fn claim(sls: &[u8], share: Option<u32>) -> Claim {
        Claim { sls: sls.iter().fold(0, |all, sl| all | 1 << sl), share }
    }

    fn lanes(count: u8, capacity: u8) -> PortLanes {
        let fold = |vls: u16| if vls == 0 { 0 } else { 1 << (vls.trailing_zeros() as u8 % count) };
        PortLanes { vls: IDENTITY.map(fold), engine_sls: 0, count, capacity: (capacity, capacity) }
    }

    fn used(entries: &Entries) -> Vec<(u8, u8)> {
        entries.iter().copied().filter(|&(_, weight)| weight > 0).collect()
    }

    fn weight_of(entries: &Entries, vl: u8) -> u64 {
        entries.iter().filter(|entry| entry.0 == vl).map(|entry| u64::from(entry.1)).sum()
    }

    #[test]
    fn a_vl_has_the_shares_of_its_sls_and_others_the_least_weight() {
        let claims = vec![
            claim(&[1], Some(2000)),
            claim(&[2, 3], Some(4000)),
            claim(&[0], Some(3000)),
            claim(&[5], Some(1000)),
        ];
        let (low, high) = arbitration(claims).entries(&lanes(4, 8));
        // SL 5 shares VL 1, and SLs 2 and 3 divide theirs.
        assert_eq!(used(&low), [(0, 96), (1, 96), (2, 64), (3, 64)]);
        assert_eq!(used(&high), []);
        let (low, _) = arbitration(vec![claim(&[1], Some(10_000))]).entries(&lanes(4, 8));
        assert_eq!(used(&low), [(0, 1), (1, 64), (2, 1), (3, 1)]);
    }

    #[test]
    fn a_large_share_has_several_entries_apart() {
        let claims = vec![claim(&[0], Some(1000)), claim(&[1], Some(9000))];
        let arbitration = arbitration(claims);
        let (low, _) = arbitration.entries(&lanes(2, 8));
        assert_eq!(used(&low), [(1, 192), (0, 64), (1, 192), (1, 192)]);
        // Where they do not fit, all weights are smaller.
        let (low, _) = arbitration.entries(&lanes(2, 2));
        assert_eq!(used(&low), [(0, 28), (1, 255)]);
    }

    #[test]
    fn high_priority_is_in_the_high_table_and_keeps_no_low_share() {
        let claims = vec![claim(&[0], Some(10_000)), claim(&[1, 2], None)];
        let arbitration = arbitration(claims);
        let (low, high) = arbitration.entries(&lanes(4, 8));
        assert_eq!(used(&low), [(0, 64), (3, 1)]);
        assert_eq!(used(&high), [(1, HIGH_WEIGHT), (2, HIGH_WEIGHT)]);
        // With two VLs, that of SL 2 is that of SL 0, which keeps its share.
        let (low, high) = arbitration.entries(&lanes(2, 8));
        assert_eq!((used(&low), used(&high).len()), (vec![(0, 64)], 2));
        let mut own = sm_config::QosTables::of(&sm_config::Settings::default()).ca;
        assert_eq!(arbitration.high_limit(&own), HIGH_LIMIT);
        (own.high_limit, own.has_high_limit) = (255, true);
        assert_eq!(arbitration.high_limit(&own), 255, "that of the operator");
    }

    #[test]
    fn a_share_is_divided_among_the_vls_that_the_engine_may_use() {
        let claims = vec![claim(&[0], Some(2000)), claim(&[8], Some(8000))];
        let torus = PortLanes { engine_sls: 7, ..lanes(15, 32) };
        let (low, _) = arbitration(claims.clone()).entries(&torus);
        assert!((0..8).all(|vl| weight_of(&low, vl) == 64), "{low:?}");
        // VL 15 drops what SL 15 has.
        assert!((8..15).all(|vl| (290..=295).contains(&weight_of(&low, vl))), "{low:?}");
        let layers = PortLanes { engine_sls: 15, ..lanes(4, 8) };
        let (low, _) = arbitration(claims).entries(&layers);
        assert_eq!(used(&low), [(0, 64), (1, 64), (2, 64), (3, 64)]);
    }

    proptest! {
        /// Proves IBA 7.6.9: what a port can hold, with every data VL in it.
        #[test]
        fn weights_are_in_proportion_and_fit(
            shares in proptest::collection::vec(0u64..=10_000, 1..16), room in 0usize..80,
        ) {
            let shares: Vec<(u8, u64)> = (0u8..).zip(shares).collect();
            let capacity = shares.len() + room;
            let entries = low_entries(&shares, capacity);
            let used = used(&entries);
            prop_assert!(used.len() <= capacity.min(VL_ARB_ENTRIES));
            let total: u64 = shares.iter().map(|(_, share)| share).sum();
            let sum: u64 =
                shares.iter().filter(|s| s.1 > 0).map(|s| weight_of(&entries, s.0)).sum();
            for &(vl, share) in &shares {
                let weight = weight_of(&entries, vl);
                prop_assert!(weight >= 1, "VL {vl} never sends");
                if share == 0 {
                    prop_assert_eq!(weight, 1);
                } else {
                    // Rounding moves a weight by 1, and the sum by 1 for each VL.
                    let ideal = share * sum / total;
                    prop_assert!(weight.abs_diff(ideal) <= 17, "{weight} {ideal}");
                }
            }
        }

        #[test]
        fn no_port_breaks_the_calculation(
            shares in proptest::collection::vec(0u64..=10_000, 0..16), capacity in 0usize..80,
        ) {
            let shares: Vec<(u8, u64)> = (0u8..).zip(shares).collect();
            prop_assert!(used(&low_entries(&shares, capacity)).len() <= capacity);
        }
    }
}
