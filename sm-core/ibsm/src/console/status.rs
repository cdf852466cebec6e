//! The word `status`.

use std::fmt::{Display, Write as _};

use ib_mad::wire::attribute::SmState;

use super::{View, perf};

/// The state of an SM, as OpenSM pads it.
fn padded(state: &str) -> &'static str {
    let is = |known: SmState| state == known.to_string();
    match () {
        () if is(SmState::Discovering) => "Discovering",
        () if is(SmState::Standby) => "Standby    ",
        () if is(SmState::NotActive) => "Not Active ",
        () if is(SmState::Master) => "Master     ",
        () => "UNKNOWN    ",
    }
}

/// State of the manager.
pub(super) fn status(view: &View) -> String {
    let View { sm, settings, sa, .. } = view;
    let is_master = sm.state == SmState::Master.to_string();
    let total = |name: &str| {
        let total = sm.counters.iter().find(|(known, _)| known == name);
        total.map_or(0, |(_, total)| *total)
    };
    let mut text = String::new();
    let head = |text: &mut String, name: &str, value: &dyn Display| {
        let _ = writeln!(text, "   {name:<21}: {value}");
    };
    head(&mut text, "OpenSM Version", &concat!("ibsm ", env!("CARGO_PKG_VERSION")));
    head(&mut text, "SM State", &padded(&sm.state));
    head(&mut text, "SM Priority", &sm.priority);
    head(&mut text, "SA State", &if is_master && sm.subnet_up { "Ready" } else { "Init" });
    let engine = if sm.routing_engine.is_empty() { "none" } else { &sm.routing_engine };
    head(&mut text, "Routing Engine", &engine);
    text += "   Loaded event plugins : <none>\n";

    let _ = writeln!(text, "\n   PerfMgr state/sweep state : {}", perf::states(view));

    let line = |text: &mut String, name: &str, value: u64| {
        let _ = writeln!(text, "   {name:<31}: {value}");
    };
    text += "\n   MAD stats\n   ---------\n";
    line(&mut text, "QP0 MADs outstanding", sm.smps_outstanding);
    line(&mut text, "QP0 MADs outstanding (on wire)", sm.smps_outstanding);
    line(&mut text, "QP0 MADs rcvd", total("smps_answered"));
    line(&mut text, "QP0 MADs sent", total("smps_sent"));
    line(&mut text, "QP0 unicasts sent", 0);
    line(&mut text, "QP0 unknown MADs rcvd", total("smps_unmatched"));
    line(&mut text, "SA MADs outstanding", sa.received.saturating_sub(sa.answered + sa.dropped));
    line(&mut text, "SA MADs rcvd", sa.received);
    line(&mut text, "SA MADs sent", sa.answered);
    line(&mut text, "SA unknown MADs rcvd", 0);
    line(&mut text, "SA MADs ignored", sa.dropped);

    text += "\n   Subnet flags\n   ------------\n";
    line(&mut text, "Sweeping enabled", sm.sweeping.into());
    line(&mut text, "Sweep interval (seconds)", settings.sweep_interval.into());
    line(&mut text, "Ignore existing lfts", 0);
    line(&mut text, "Subnet Init errors", (is_master && !sm.subnet_up).into());
    line(&mut text, "In sweep hop 0", 0);
    line(&mut text, "First time master sweep", (is_master && sm.routing_engine.is_empty()).into());
    line(&mut text, "Coming out of standby", 0);

    text += "\n   Known SMs\n   ---------\n   Port GUID       SM State    Priority\n   \
             ---------       --------    --------\n";
    let own = sm.guid.map_or(0, |guid| guid.0);
    let _ = writeln!(text, "   {own:#x} {} {}        SELF", padded(&sm.state), sm.priority);
    for peer in &sm.peers {
        let state = padded(&peer.state.to_string());
        let _ = writeln!(text, "   {:#x} {state} {}", peer.port_guid.0, peer.priority);
    }
    text.push('\n');
    text
}
