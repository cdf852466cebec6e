//! Proof that a multicast tree delivers, by other code than that which made it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::{Place, PortMask, Tree};
use crate::routing::topology::Topology;

/// What is wrong with a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Defect {
    /// A switch forwards to one that does not forward back: members behind it hear, and are not
    /// heard.
    #[error("switch {switch} forwards by port {port} to a switch that does not forward back")]
    OneWay {
        /// The switch's number.
        switch: u16,
        /// Its port.
        port: u8,
    },
    /// A packet comes to a switch by two ways.
    #[error("packets come to switch {switch} twice")]
    Loop {
        /// The switch's number.
        switch: u16,
    },
    /// A member hears nothing.
    #[error("the member at port {} of switch {} is not reached", place.exit, place.switch)]
    Missed {
        /// The member.
        place: Place,
    },
    /// A port leads neither to a switch nor to a member.
    #[error("switch {switch} forwards by port {port}, where there is no member")]
    Stray {
        /// The switch's number.
        switch: u16,
        /// Its port.
        port: u8,
    },
}

/// Checks that every packet of a member reaches each other one exactly once, and nobody else, but
/// for members that the tree says are not reached.
pub fn check(topology: &Topology, tree: &Tree, members: &[Place]) -> Result<(), Defect> {
    let masks: BTreeMap<u16, PortMask> = tree.masks.iter().copied().collect();
    let members: BTreeSet<Place> =
        members.iter().copied().filter(|place| !tree.unreached.contains(place)).collect();
    let Some(&first) = members.first() else {
        return match masks.first_key_value() {
            None => Ok(()),
            Some((&switch, mask)) => {
                Err(Defect::Stray { switch, port: mask.ports().next().unwrap_or(0) })
            }
        };
    };
    let mut heard = BTreeSet::new();
    let mut came_by: BTreeMap<u16, Option<u8>> = [(first.switch, None)].into();
    let mut queue = VecDeque::from([first.switch]);
    while let Some(switch) = queue.pop_front() {
        let Some(mask) = masks.get(&switch) else { continue };
        let ingress = came_by[&switch];
        for port in mask.ports().filter(|&port| Some(port) != ingress) {
            let Some(link) = topology.link_at(switch, port).map(|index| topology.link(index))
            else {
                let place = Place { switch, exit: port };
                if !members.contains(&place) {
                    return Err(Defect::Stray { switch, port });
                }
                heard.insert(place);
                continue;
            };
            if !masks.get(&link.peer).is_some_and(|mask| mask.contains(link.peer_port)) {
                return Err(Defect::OneWay { switch, port });
            }
            if came_by.insert(link.peer, Some(link.peer_port)).is_some() {
                return Err(Defect::Loop { switch: link.peer });
            }
            queue.push_back(link.peer);
        }
    }
    match members.difference(&heard).next() {
        Some(&place) => Err(Defect::Missed { place }),
        None => Ok(()),
    }
}
