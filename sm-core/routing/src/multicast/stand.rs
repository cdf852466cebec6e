//! Checks by links alone whether trees in force still serve their groups.

use super::{Place, Room, Tree, check};
use crate::Topology;
use crate::regions::Regions;

use ib_mad::types::Lid;

/// Checks trees in force, without examining dependencies.
#[derive(Debug)]
pub struct Standing<'a> {
    topology: &'a Topology,
    room: &'a Room,
    /// The connected parts of the fabric without the switches that have no room for MLIDs of a
    /// class ([`Room::class`]): the class last requested, and by switch a number that is equal
    /// within a part.
    parts: Option<(Option<u16>, Vec<u16>)>,
}

impl<'a> Standing<'a> {
    /// Checks trees over `topology`, whose switches have this room.
    pub fn new(topology: &'a Topology, room: &'a Room) -> Self {
        Self { topology, room, parts: None }
    }

    /// Whether a tree delivers to all members that links connect to it, uses only switches with
    /// room, and lists as unreached only members that it cannot reach. Cheapest if called by
    /// ascending MLID.
    pub fn serves(&mut self, mlid: Lid, tree: &Tree, members: &[Place]) -> bool {
        self.room.lacking(tree, mlid).is_none()
            && self.leaves_out_rightly(mlid, tree, members)
            && check(self.topology, tree, members).is_ok()
    }

    fn leaves_out_rightly(&mut self, mlid: Lid, tree: &Tree, members: &[Place]) -> bool {
        if tree.unreached.is_empty() {
            return true;
        }
        // If no member is reached, another root may be better.
        let Some(&(reached, _)) = tree.masks.first() else { return false };
        let parts = self.parts(mlid);
        let mut unreached = tree.unreached.iter();
        unreached.all(|place| {
            members.contains(place)
                && parts[usize::from(place.switch)] != parts[usize::from(reached)]
        })
    }

    fn parts(&mut self, mlid: Lid) -> &[u16] {
        let (topology, room) = (self.topology, self.room);
        let class = room.class(mlid);
        let (_, parts) = match self.parts.take_if(|(of, _)| *of == class) {
            Some(known) => self.parts.insert(known),
            None => {
                let is_open = |switch: u16| !room.is_barred(switch, mlid);
                let joins = |a: u16, b: u16| is_open(a) && is_open(b);
                let found = Regions::find(topology, topology.switches(), joins);
                self.parts.insert((class, found.starts))
            }
        };
        parts
    }
}
