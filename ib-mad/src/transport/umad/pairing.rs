//! Which ports of a host belong together: those with one port GUID.
//!
//! A port of a planarized fabric shows as several: one of the device for data and QP1, and one for
//! each plane of a sibling device, which carries SMPs only. Nothing but the port GUID links them.
//! This module decides; sysfs is read in `sysfs`.

use std::collections::HashMap;

use crate::types::Guid;
use crate::wire::attribute::CapabilityMask;

/// Limit of planes of a port. XDR adapters have four.
pub const PLANES_MAX: usize = 16;

/// What the rule needs to know of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortFacts {
    /// PortGUID.
    pub guid: Guid,
    /// CapabilityMask, of which IsSMdisabled counts.
    pub capabilities: CapabilityMask,
}

/// The ports with one port GUID, by their places in the list that was paired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pairing {
    /// The port GUID.
    pub guid: Guid,
    /// The port for QP1; `None` if the rule does not find one.
    pub gsi: Option<usize>,
    /// The ports for SMPs, in the order of the list: one for each plane.
    pub smi: Vec<usize>,
}

impl Pairing {
    /// Whether the port is planarized.
    pub fn is_planarized(&self) -> bool {
        self.gsi.is_none_or(|gsi| !self.smi.contains(&gsi))
    }
}

/// Pairs the ports of a host, in the order of the first port of each GUID. A GUID that occurs once
/// is of an ordinary port, which is for both. Of a GUID that occurs more than once, the ports with
/// IsSMdisabled are for QP1, of which the first counts; the others are for SMPs.
pub fn pair(ports: &[PortFacts]) -> Vec<Pairing> {
    let mut places: HashMap<Guid, usize> = HashMap::new();
    let mut found: Vec<(Guid, Vec<usize>)> = Vec::new();
    for (at, port) in ports.iter().enumerate() {
        let place = *places.entry(port.guid).or_insert_with(|| {
            found.push((port.guid, Vec::new()));
            found.len() - 1
        });
        found[place].1.push(at);
    }
    let pairing = |(guid, all): (Guid, Vec<usize>)| {
        if let [only] = all[..] {
            return Pairing { guid, gsi: Some(only), smi: vec![only] };
        }
        let is_disabled =
            |at: &usize| ports[*at].capabilities.contains(CapabilityMask::IS_SM_DISABLED);
        let (gsi, smi): (Vec<usize>, Vec<usize>) = all.into_iter().partition(is_disabled);
        Pairing { guid, gsi: gsi.first().copied(), smi }
    };
    found.into_iter().map(pairing).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: CapabilityMask = CapabilityMask::NONE;
    const DISABLED: CapabilityMask = CapabilityMask::IS_SM_DISABLED;

    fn facts(ports: &[(u64, CapabilityMask)]) -> Vec<PortFacts> {
        let port = |&(guid, capabilities)| PortFacts { guid: Guid(guid), capabilities };
        ports.iter().map(port).collect()
    }

    fn paired(ports: &[(u64, CapabilityMask)]) -> Vec<(u64, Option<usize>, Vec<usize>)> {
        let pairings = pair(&facts(ports)).into_iter();
        pairings.map(|pairing| (pairing.guid.0, pairing.gsi, pairing.smi)).collect()
    }

    #[test]
    fn a_guid_that_occurs_once_is_of_an_ordinary_port() {
        let ports = [(1, NONE), (2, DISABLED)];
        assert_eq!(paired(&ports), [(1, Some(0), vec![0]), (2, Some(1), vec![1])]);
        assert!(pair(&facts(&ports)).iter().all(|pairing| !pairing.is_planarized()));
        assert!(pair(&[]).is_empty());
    }

    /// umad0 is mlx5_0 port 1, umad1 to 4 are smi1 ports 1 to 4; a second adapter follows.
    #[test]
    fn of_a_planarized_port_the_one_without_an_sm_is_for_qp1() {
        let one = [(7, DISABLED), (7, NONE), (7, NONE), (7, NONE), (7, NONE)];
        assert_eq!(paired(&one), [(7, Some(0), vec![1, 2, 3, 4])]);
        assert!(pair(&facts(&one))[0].is_planarized());
        let two = [(7, NONE), (8, NONE), (7, DISABLED), (8, DISABLED), (7, NONE), (9, NONE)];
        assert_eq!(
            paired(&two),
            [(7, Some(2), vec![0, 4]), (8, Some(3), vec![1]), (9, Some(5), vec![5])]
        );
        // Even with a single plane the two sides differ.
        assert!(pair(&facts(&two))[1].is_planarized());
    }

    #[test]
    fn equal_guids_that_the_rule_does_not_fit_have_no_such_side() {
        assert_eq!(paired(&[(7, NONE), (7, NONE)]), [(7, None, vec![0, 1])]);
        assert_eq!(paired(&[(7, DISABLED), (7, DISABLED)]), [(7, Some(0), vec![])]);
    }

    /// A host has up to 128 umad devices and 192 ports.
    #[test]
    fn many_ports_are_paired() {
        let ports: Vec<(u64, CapabilityMask)> =
            (0..192).map(|at| (at / 5, if at % 5 == 0 { DISABLED } else { NONE })).collect();
        let pairings = paired(&ports);
        assert_eq!(pairings.len(), 39);
        assert_eq!(pairings[20], (20, Some(100), vec![101, 102, 103, 104]));
    }
}
