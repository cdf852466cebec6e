//! A routing in force, and the options that engines were given for it.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use ib_mad::types::Lid;
use sa_proto::snapshot::{Entries, Lft, PathSls};

use super::origin::Origin;
use crate::fabric::{Fabric, SwitchIndex};
use sm_config::RoutingFiles;
use sm_routing::hosts::Away;
use sm_routing::multicast::Place;
use sm_routing::verify::Unicast;
use sm_routing::{HopMatrix, Lanes, Steering, Topology, TreeTables, planes};

/// Operators' options for engines.
#[derive(Clone, Debug)]
pub(in crate::sweep) struct OperatorOptions {
    pub(super) steering: Steering,
    /// The files that they were compiled from.
    pub(super) files: Arc<RoutingFiles>,
    /// Hash of the options and of related settings.
    pub(super) options_hash: u64,
}

/// A routing in force. Its tables are stored with the switches of the fabric.
#[derive(Clone, Debug)]
pub(in crate::sweep) struct ActiveRouting {
    /// Name of the engine.
    pub(super) engine: &'static str,
    /// Number of ranks of the fat tree that it was routed as.
    pub(super) tree_ranks: Option<usize>,
    pub(super) topology: Topology,
    pub(super) hops: HopMatrix,
    /// By link: routes of hosts, if the engine has counted them.
    pub(super) loads: Vec<u32>,
    /// What the tables of a tree were computed from.
    pub(super) tree: Option<Arc<TreeTables>>,
    /// Hops of shortest paths, where the engine's paths are longer.
    pub(super) distances: Option<HopMatrix>,
    /// Switch numbers.
    pub(super) switches: Vec<SwitchIndex>,
    pub(super) numbers: HashMap<SwitchIndex, u16>,
    pub(super) lanes: Lanes,
    /// Its tables, if it was proved that they deliver every LID from everywhere.
    pub(super) proved: Proved,
    /// SLs of paths, ascending by switch; empty if the engine assigns none.
    pub(super) path_sls: Vec<Arc<PathSls>>,
    pub(super) asked: OperatorOptions,
    /// Hosts that left since the routing was computed, and the routes to them.
    pub(super) away: Away,
    /// Dependencies between its channels, computed on demand.
    pub(super) unicast: OnceLock<Arc<Unicast>>,
    /// In a planarized fabric: the routings of its planes, which this one joins
    /// ([`sm_routing::planes`]); otherwise empty.
    pub(super) planes: Vec<PlaneRouting>,
}

/// The routing of a plane.
#[derive(Clone, Debug)]
pub(super) struct PlaneRouting {
    /// The number of its first switch in the joined topology; the others follow.
    pub(super) first: u16,
    pub(super) made: Arc<ActiveRouting>,
}

/// Proved properties of tables.
#[derive(Clone, Debug)]
pub(super) enum Proved {
    /// The tables were not checked and may lose packets.
    Nothing,
    /// The tables deliver every LID from everywhere.
    Whole(Vec<Arc<Lft>>),
}

impl ActiveRouting {
    /// Records which tables were proved.
    pub(in crate::sweep) fn keep_proved(&mut self, fabric: &Fabric) {
        for plane in &mut self.planes {
            Arc::make_mut(&mut plane.made).keep_proved(fabric);
        }
        let lfts = self.lfts(fabric);
        if let Proved::Whole(proved) = &mut self.proved {
            *proved = lfts;
        }
    }

    /// Whether these tables were proved to deliver every LID from everywhere.
    pub(super) fn is_whole(&self, lfts: &[Arc<Lft>]) -> bool {
        match &self.proved {
            Proved::Nothing => false,
            Proved::Whole(proved) => {
                proved.len() == lfts.len()
                    && proved.iter().zip(lfts).all(|(proved, lft)| Arc::ptr_eq(proved, lft))
            }
        }
    }

    /// The dependencies between channels; `lfts` are its tables. Computed once, which takes 0.1 s
    /// or more.
    pub(in crate::sweep) fn unicast(&self, lfts: &[Arc<Lft>]) -> Arc<Unicast> {
        if !self.planes.is_empty() {
            let of_planes = || {
                let found: Vec<(u16, Arc<Unicast>)> = self
                    .parts(lfts)
                    .map(|(first, made, lfts)| (first, made.unicast(lfts)))
                    .collect();
                let found: Vec<(u16, &Unicast)> =
                    found.iter().map(|(first, unicast)| (*first, &**unicast)).collect();
                Arc::new(planes::joined_unicast(&found))
            };
            return self.unicast.get_or_init(of_planes).clone();
        }
        let lfts = || lfts.iter().map(|lft| &*lft.ports).collect::<Vec<_>>();
        let find = || Arc::new(Unicast::find(&self.topology, &lfts(), &self.lanes));
        self.unicast.get_or_init(find).clone()
    }

    /// The routing with other switch indices; `None` if a switch has none.
    pub(in crate::sweep) fn renumbered(
        &self,
        moved: &dyn Fn(SwitchIndex) -> Option<SwitchIndex>,
    ) -> Option<Self> {
        let switches: Vec<_> =
            self.switches.iter().map(|&old| moved(old)).collect::<Option<_>>()?;
        let numbers = switches.iter().copied().zip(0..).collect();
        let plane = |plane: &PlaneRouting| {
            let made = Arc::new(plane.made.renumbered(moved)?);
            Some(PlaneRouting { made, ..*plane })
        };
        let planes = self.planes.iter().map(plane).collect::<Option<_>>()?;
        Some(Self { switches, numbers, planes, ..self.clone() })
    }

    /// The routings of the planes, or this one if there are none: each with the number of its first
    /// switch here, and its part of `of_switches`, which is by switch.
    pub(in crate::sweep) fn parts<'a, T>(
        &'a self,
        of_switches: &'a [T],
    ) -> impl Iterator<Item = (u16, &'a Self, &'a [T])> {
        let planes = self.planes.iter().map(move |plane| {
            let (first, count) = (usize::from(plane.first), plane.made.switches.len());
            let own = of_switches.get(first..first + count).unwrap_or_default();
            (plane.first, &*plane.made, own)
        });
        planes.chain(self.planes.is_empty().then_some((0, self, of_switches)))
    }

    /// The routings of its planes; none in a fabric without.
    pub(super) fn planes(&self) -> &[PlaneRouting] {
        &self.planes
    }

    /// The routing of the plane that had one of these switches; of a fabric that had no planes,
    /// this one. Switches of a plane that none had may be those of a new plane.
    pub(super) fn plane_with(self: &Arc<Self>, switches: &[SwitchIndex]) -> Option<Arc<Self>> {
        if self.planes.is_empty() {
            return Some(Arc::clone(self));
        }
        let has = |made: &Self| switches.iter().any(|&index| made.number(index).is_some());
        let plane = self.planes.iter().find(|plane| has(&plane.made))?;
        Some(Arc::clone(&plane.made))
    }

    /// The numbers of the first switches of its planes, ascending.
    pub(in crate::sweep) fn plane_starts(&self) -> Vec<u16> {
        self.parts(&self.switches).map(|(first, ..)| first).collect()
    }

    /// Where the port is that has `lid`, in each plane.
    pub(in crate::sweep) fn places_of(&self, lid: Lid) -> impl Iterator<Item = Place> {
        self.parts(&self.switches).filter_map(move |(first, made, _)| {
            let place = made.place_of(lid)?;
            Some(Place { switch: first + place.switch, ..place })
        })
    }

    pub(in crate::sweep) fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Hops of shortest paths between switches.
    pub(in crate::sweep) fn distances(&self) -> &HopMatrix {
        self.distances.as_ref().unwrap_or(&self.hops)
    }

    /// Name of the engine.
    pub(in crate::sweep) fn engine(&self) -> &'static str {
        self.engine
    }

    /// Number of ranks of the fat tree that the fabric was routed as, if it is one.
    pub(in crate::sweep) fn tree_ranks(&self) -> Option<usize> {
        self.tree_ranks
    }

    /// The origin to save for the next run.
    pub(in crate::sweep) fn origin(&self) -> Origin {
        Origin { engine: self.engine.to_owned(), options_hash: self.asked.options_hash }
    }

    /// Operators' options of the engine.
    pub(in crate::sweep) fn steering(&self) -> &Steering {
        &self.asked.steering
    }

    /// The switches, by number.
    pub(in crate::sweep) fn switches(&self) -> &[SwitchIndex] {
        &self.switches
    }

    /// The switch of this number.
    pub(in crate::sweep) fn switch(&self, number: u16) -> Option<SwitchIndex> {
        self.switches.get(usize::from(number)).copied()
    }

    /// The number of a switch.
    pub(in crate::sweep) fn number(&self, switch: SwitchIndex) -> Option<u16> {
        self.numbers.get(&switch).copied()
    }

    /// The virtual lanes that its routes take.
    pub(in crate::sweep) fn lanes(&self) -> &Lanes {
        &self.lanes
    }

    /// SLs of paths, ascending by switch; empty if the engine assigns none.
    pub(in crate::sweep) fn path_sls(&self) -> &[Arc<PathSls>] {
        &self.path_sls
    }

    /// Where the port is that has `lid`; in a planarized fabric, in the first plane that it is in.
    pub(in crate::sweep) fn place_of(&self, lid: Lid) -> Option<Place> {
        let to = self.topology.owner(lid)?;
        Some(Place { switch: to.egress_switch, exit: to.exit })
    }

    /// Its tables.
    pub(in crate::sweep) fn lfts(&self, fabric: &Fabric) -> Vec<Arc<Lft>> {
        let switches = self.switches.iter();
        switches.map(|&index| fabric.switch(index).lft.desired().clone()).collect()
    }
}

/// The entries of tables.
pub(super) fn ports(lfts: &[Arc<Lft>]) -> Vec<&Entries> {
    lfts.iter().map(|lft| &lft.ports).collect()
}
