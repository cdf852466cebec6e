//! From the fabric to its forwarding tables: the input of the routing engine, and the handling of
//! its result.
//!
//! Routing a large fabric takes long, so the sweep only prepares a [`RoutingJob`]; the caller runs
//! it on any thread, and the sweep continues when it gets the result.

use tracing::{debug, info, warn};

use super::configure::program::Steps;
use crate::fabric::SwitchIndex;
use crate::smp::{Kind, Request};
use crate::sweep::subnet::Subnet;
use crate::sweep::subnet::routing::active::ActiveRouting;
use crate::sweep::subnet::routing::job::{Chosen, Rejection};
use sm_routing::DisplayWith;
use sm_routing::label::switch_label;
use sm_routing::program::{Change, Program, Write};
use sm_routing::verify::CreditLoops;

/// Maximum number of hops of a credit loop that are logged.
const CYCLE_HOPS_MAX: usize = 8;

impl Subnet {
    /// Makes a routing the wanted one, and plans its writes.
    pub(in crate::sweep) fn adopt(&mut self, chosen: Chosen) -> Steps {
        let Chosen { mut made, lfts, kept, loops, .. } = chosen;
        self.journal.report.last_lid = made.topology().last_lid().0;
        let mut steps: [Vec<Request>; 3] = Default::default();
        let mut programs = Vec::new();
        for (_, part, lfts) in made.parts(&lfts) {
            let topology = part.topology();
            let tables = part.switches().iter().zip(lfts).zip(topology.switches());
            let changes = tables.map(|((&index, new), number)| {
                let old = self.fabric.switch(index).lft.acknowledged();
                Change { switch: number, old, new }
            });
            programs.push((part.switches().to_vec(), Program::plan(topology, changes)));
        }
        for (&index, lft) in made.switches().iter().zip(lfts) {
            self.fabric.lft_mut(index).set_desired(lft);
        }
        made.keep_proved(&self.fabric);
        for (switches, program) in &programs {
            for (step, writes) in
                steps.iter_mut().zip([&program.repair, &program.shift, &program.remove])
            {
                let requests =
                    writes.iter().filter_map(|write| self.block_request(switches, *write));
                step.extend(requests);
            }
        }
        let steps: Steps = steps.into_iter().filter(|requests| !requests.is_empty()).collect();
        debug!(
            "{} routes {} switches; blocks to write: {:?}",
            made.engine(),
            made.switches().len(),
            steps.iter().map(Vec::len).collect::<Vec<_>>()
        );
        self.note_default_engine(&made);
        let replaces = !self.settings.keep_found_routes;
        let appeared = self.routing.adopt(made, loops.as_ref(), kept, replaces);
        if let Some(loops) = loops.filter(|_| appeared) {
            self.warn_of_loops(&loops);
        }
        steps
    }

    /// Logs what the default engine is good for in this fabric, unless the operator chose an engine
    /// or that was so before.
    fn note_default_engine(&self, made: &ActiveRouting) {
        let kind = (made.engine(), made.tree_ranks());
        let before = self.routing.made().map(|before| (before.engine(), before.tree_ranks()));
        if self.settings.routing_engine.is_some() || before == Some(kind) {
            return;
        }
        match kind {
            (engine, Some(ranks)) => info!(
                "routing_engine is not set: {engine} routes the fat tree of {ranks} ranks, and no \
                 engine does better"
            ),
            (engine, None) => info!(
                "routing_engine is not set: {engine} does not route the fabric as a fat tree; \
                 other engines may do better, and `ibsm plan` recommends one"
            ),
        }
    }

    /// Credit loops have appeared in the routing in force.
    pub(in crate::sweep) fn warn_of_loops(&self, loops: &CreditLoops) {
        let Some(made) = self.routing.made() else { return };
        warn!(
            "credit loops: traffic can deadlock on up to {} links, for example {}; {} does not \
             avoid them",
            loops.looping,
            self.cycle(made.switches(), loops),
            made.engine()
        );
    }

    /// Credit loops of replies have appeared in the routing in force.
    pub(in crate::sweep) fn warn_of_reply_loops(&self, loops: &CreditLoops) {
        let Some(made) = self.routing.made() else { return };
        warn!(
            "credit loops of replies: hosts that reply on the SL of the request, as Linux does, \
             can deadlock on up to {} links, for example {}; {} avoids loops only if each direction \
             has the SL of its own path",
            loops.looping,
            self.cycle(made.switches(), loops),
            made.engine()
        );
    }

    /// An example of a credit loop, by switch names (numbers from `switches`).
    fn cycle(&self, switches: &[SwitchIndex], loops: &CreditLoops) -> String {
        let lane = loops.lane.map_or(String::new(), |lane| format!(" on VL {lane}"));
        self.hops_in_words(switches, &loops.example) + &lane
    }

    /// Hops by the names of switches, which `switches` numbers, and the ports that they send by.
    pub(in crate::sweep) fn hops_in_words(
        &self,
        switches: &[SwitchIndex],
        hops: &[(u16, u8)],
    ) -> String {
        let name = |&(number, port): &(u16, u8)| {
            let index = *switches.get(usize::from(number))?;
            Some(format!("'{}' port {port}", self.switch_name(index)))
        };
        let named: Vec<_> = hops.iter().take(CYCLE_HOPS_MAX).filter_map(name).collect();
        let more = hops.len().saturating_sub(CYCLE_HOPS_MAX);
        let rest = if more > 0 { format!(" > {more} more") } else { String::new() };
        named.join(" > ") + &rest
    }

    fn switch_name(&self, index: SwitchIndex) -> String {
        self.fabric.node(self.fabric.switch(index).node).name().to_string()
    }

    /// Reports why an engine is not used, unless that is among `reported` of the previous routing,
    /// and returns it as text.
    pub(in crate::sweep) fn report_rejection(
        &mut self,
        switches: &[SwitchIndex],
        reason: Rejection,
        reported: &[String],
    ) -> String {
        match reason {
            Rejection::Refused(reason) => {
                let label = |number: u16| {
                    let index = switches.get(usize::from(number)).copied();
                    let name = index.map(|index| self.switch_name(index));
                    switch_label(number, name.as_deref())
                };
                let reason = reason.display_with(&label).to_string();
                if reported.contains(&reason) {
                    debug!("routing engine skipped, as before: {reason}");
                } else {
                    self.anomaly(format_args!("routing engine skipped: {reason}"));
                }
                reason
            }
            Rejection::Loops(engine, loops) => {
                let (links, cycle) = (loops.looping, self.cycle(switches, &loops));
                let reason =
                    format!("traffic could deadlock on up to {links} links, for example {cycle}");
                let reason = format!("{engine}: {reason}");
                if reported.contains(&reason) {
                    debug!("routing engine skipped, as before: {reason}");
                } else {
                    self.anomaly(format_args!("routing engine skipped: {reason}"));
                }
                reason
            }
            Rejection::Defective(engine, deliveries) => {
                // An engine's fault. The tables in force are better than these.
                let count = deliveries.defective;
                self.error(format_args!(
                    "{engine}: {count} wrong entries; its tables are not used"
                ));
                for defect in deliveries.defects {
                    let name = switches.get(usize::from(defect.switch));
                    let name = name.map_or(String::new(), |&index| self.switch_name(index));
                    self.error(format_args!("{engine} at '{name}': {defect}"));
                }
                format!("{engine}: {count} wrong entries")
            }
        }
    }

    /// All blocks that a switch may not hold correctly.
    pub(in crate::sweep) fn stale_blocks(&self) -> Vec<Request> {
        let switches = self.fabric.switches();
        let blocks = switches.flat_map(|(_, switch)| {
            let port = self.fabric.ports_of(switch.node).next();
            let blocks = switch.lft.stale_blocks();
            blocks.filter_map(move |block| Some(Request::block(Kind::SetForwarding, port?, block)))
        });
        blocks.collect()
    }

    fn block_request(&self, switches: &[SwitchIndex], write: Write) -> Option<Request> {
        let Write { switch, block } = write;
        let switch = self.fabric.switch(*switches.get(usize::from(switch))?);
        let port = self.fabric.ports_of(switch.node).next()?;
        switch.lft.is_stale(block).then(|| Request::block(Kind::SetForwarding, port, block))
    }
}
