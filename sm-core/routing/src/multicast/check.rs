//! Proves that a multicast tree delivers, without using the code that builds trees.

use super::{Place, Tree, unique};
use crate::topology::Topology;

/// A defect of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Defect {
    /// A switch forwards to one that does not forward back: members behind it receive packets, but
    /// their own packets are not delivered.
    #[error("switch {switch} forwards out of port {port} to a switch that does not forward back")]
    OneWay {
        /// The switch's number.
        switch: u16,
        /// Its port.
        port: u8,
    },
    /// A packet reaches a switch by two paths.
    #[error("packets reach switch {switch} twice")]
    Loop {
        /// The switch's number.
        switch: u16,
    },
    /// A member receives nothing.
    #[error("the member at port {} of switch {} is not reached", place.exit, place.switch)]
    Missed {
        /// The member.
        place: Place,
    },
    /// A port leads neither to a switch nor to a member.
    #[error("switch {switch} forwards out of port {port}, where there is no member")]
    Stray {
        /// The switch's number.
        switch: u16,
        /// Its port.
        port: u8,
    },
}

/// Checks that every packet of a member reaches each other member exactly once, and no other port,
/// except for members that the tree lists as unreached. Takes time proportional to the tree.
pub fn check(topology: &Topology, tree: &Tree, members: &[Place]) -> Result<(), Defect> {
    let masks = &tree.masks;
    let at = |switch: u16| masks.binary_search_by_key(&switch, |(switch, _)| *switch).ok();
    let mut members = unique(members);
    members.retain(|place| tree.unreached.binary_search(place).is_err());
    let Some(&first) = members.first() else {
        return match masks.first() {
            None => Ok(()),
            Some((switch, mask)) => {
                Err(Defect::Stray { switch: *switch, port: mask.ports().next().unwrap_or(0) })
            }
        };
    };
    let mut heard = vec![false; members.len()];
    // By switch of the tree: whether a packet arrived.
    let mut came = vec![false; masks.len()];
    let Some(start) = at(first.switch) else { return Err(Defect::Missed { place: first }) };
    came[start] = true;
    let mut waiting: Vec<(usize, Option<u8>)> = vec![(start, None)];
    while let Some((index, ingress)) = waiting.pop() {
        let (switch, mask) = masks[index];
        for port in mask.ports().filter(|&port| Some(port) != ingress) {
            let Some(link) = topology.link_at(switch, port).map(|index| topology.link(index))
            else {
                let Ok(place) = members.binary_search(&Place { switch, exit: port }) else {
                    return Err(Defect::Stray { switch, port });
                };
                heard[place] = true;
                continue;
            };
            let far = at(link.peer).filter(|&far| masks[far].1.contains(link.peer_port));
            let Some(far) = far else { return Err(Defect::OneWay { switch, port }) };
            if std::mem::replace(&mut came[far], true) {
                return Err(Defect::Loop { switch: link.peer });
            }
            waiting.push((far, Some(link.peer_port)));
        }
    }
    match heard.iter().position(|heard| !heard) {
        Some(missed) => Err(Defect::Missed { place: members[missed] }),
        None => Ok(()),
    }
}
