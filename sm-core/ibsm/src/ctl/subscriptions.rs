//! `ibsmctl subscriptions`: lists event subscriptions, with subscriber, events and reporter.

use std::fmt::Write as _;

use ib_mad::types::Gid;
use ib_mad::wire::attribute::InformInfo;
use sa_proto::proto::admin::{Subscription, SubscriptionsRequest};
use serde::Serialize;

use super::port::{self, PortJson};
use super::{CtlError, Sm, to_json};

/// Options of the command.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Print JSON.
    #[arg(short, long)]
    json: bool,
}

/// Requests the subscriptions and formats them.
pub(super) async fn run(sm: &Sm, options: &Options) -> Result<String, CtlError> {
    let answer = sm.connect().await?.list_subscriptions(SubscriptionsRequest {}).await;
    let mut stream = answer.map_err(|status| sm.refused(&status))?.into_inner();
    let mut subscriptions = Vec::new();
    while let Some(message) = stream.message().await.map_err(|status| sm.refused(&status))? {
        subscriptions.extend(message.subscriptions);
    }
    Ok(if options.json {
        to_json(&subscriptions.iter().map(SubscriptionJson::of).collect::<Vec<_>>())
    } else {
        text(&subscriptions)
    })
}

fn text(subscriptions: &[Subscription]) -> String {
    if subscriptions.is_empty() {
        return "no subscriptions\n".to_owned();
    }
    let mut text = String::new();
    for subscription in subscriptions {
        let reporter = match subscription.responder.as_str() {
            "" => "no responder reports".to_owned(),
            name => format!("{name} reports"),
        };
        let _ = writeln!(
            text,
            "{}  {} #{}  {}{}; to LID {}, QP {:#x}; {reporter}",
            port::name(subscription.port.as_ref()),
            port::gid(subscription.port.as_ref()),
            subscription.enumeration,
            wanted(&subscription.inform_info),
            if subscription.trusted { ", trusted" } else { "" },
            subscription.lid,
            subscription.qpn,
        );
    }
    text
}

/// The subscribed events as text.
fn wanted(inform_info: &[u8]) -> String {
    let Ok(info) = InformInfo::new(inform_info) else { return "unreadable".to_owned() };
    let mut words = match (info.is_generic(), info.trap_number().0) {
        (1, 0xFFFF) => "all traps".to_owned(),
        (1, number) => format!("trap {number}"),
        (_, 0xFFFF) => "all vendor-specific events".to_owned(),
        (_, device) => format!("events of device {device:#06x}"),
    };
    if info.inform_type() != 0xFFFF {
        let _ = write!(words, ", type {}", info.inform_type());
    }
    if info.gid() != Gid::default() {
        let _ = write!(words, ", from {}", info.gid());
    } else if info.lid_range_begin().0 != 0xFFFF {
        let (first, last) = (info.lid_range_begin().0, info.lid_range_end().0);
        let _ = write!(words, ", from LID {first}");
        if last > first {
            let _ = write!(words, " to {last}");
        }
    }
    words
}

/// A subscription as JSON. Its keys stay; more may be added.
#[derive(Serialize)]
struct SubscriptionJson<'a> {
    #[serde(flatten)]
    port: PortJson<'a>,
    enumeration: u32,
    generic: bool,
    trap_or_device: u16,
    inform_type: u16,
    wanted: String,
    lid: u32,
    qpn: u32,
    trusted: bool,
    responder: Option<&'a str>,
}

impl<'a> SubscriptionJson<'a> {
    fn of(subscription: &'a Subscription) -> Self {
        let info = InformInfo::new(&subscription.inform_info[..]).ok();
        Self {
            port: PortJson::of(subscription.port.as_ref()),
            enumeration: subscription.enumeration,
            generic: info.as_ref().is_some_and(|info| info.is_generic() == 1),
            trap_or_device: info.as_ref().map_or(0, |info| info.trap_number().0),
            inform_type: info.as_ref().map_or(0, |info| info.inform_type()),
            wanted: wanted(&subscription.inform_info),
            lid: subscription.lid,
            qpn: subscription.qpn,
            trusted: subscription.trusted,
            responder: Some(subscription.responder.as_str()).filter(|name| !name.is_empty()),
        }
    }
}

#[cfg(test)]
mod tests {
    use ib_mad::types::Lid;
    use ib_mad::wire::attribute::TrapNumber;

    use super::*;

    fn subscription(trap: u16, lids: (u16, u16), kind: u16, responder: &str) -> Subscription {
        let mut inform_info = vec![0; 36];
        let mut view = InformInfo::new(&mut inform_info[..]).unwrap();
        view.set_is_generic(1)
            .set_trap_number(TrapNumber(trap))
            .set_inform_type(kind)
            .set_lid_range_begin(Lid(lids.0))
            .set_lid_range_end(Lid(lids.1));
        Subscription {
            inform_info,
            enumeration: 1,
            lid: 4,
            qpn: 1,
            trusted: trap == 257,
            responder: responder.to_owned(),
            ..Subscription::default()
        }
    }

    #[test]
    fn subscriptions_are_shown_with_their_events_and_reporter() {
        let all = subscription(0xFFFF, (0xFFFF, 0), 0xFFFF, "r1");
        let one = subscription(257, (3, 9), 2, "");
        assert_eq!(
            text(&[all, one]),
            "not in the fabric  no GID #1  all traps; to LID 4, QP 0x1; r1 reports\n\
             not in the fabric  no GID #1  trap 257, type 2, from LID 3 to 9, trusted; to LID 4, \
             QP 0x1; no responder reports\n"
        );
        assert_eq!(text(&[]), "no subscriptions\n");
    }
}
