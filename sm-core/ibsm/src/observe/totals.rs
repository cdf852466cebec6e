//! Sums over all responders: load, answers, drops, and the most active requesters.

use std::collections::{BTreeMap, HashMap};

use ib_mad::wire::mad::AttributeId;
use ib_mad::wire::sa::attribute;

use super::load::{latencies, rounded};
use super::moment::{DropRate, Load, Talker, TypeRate};
use super::reported::{Rates, merge};
use super::{Observer, Seen};

/// Largest number of requesters listed.
const TALKERS_MAX: usize = 20;

impl Observer {
    /// The load of all responders together.
    pub(super) fn total(&self, seen: &Seen<'_>) -> Load {
        let rates = || self.responders.values().filter_map(|known| known.rates.as_ref());
        let any = rates().next().is_some();
        let sum = |part: fn(&Rates) -> f64| any.then(|| rounded(rates().map(part).sum()));
        let mut latency = Vec::new();
        rates().for_each(|rates| merge(&mut latency, &rates.latency));
        let there = || self.responders.values().filter(|known| known.gone.is_none());
        let in_flight = there().filter_map(|known| known.now.load.in_flight).sum();
        let lags = there().filter_map(|known| known.now.load.lag_ms);
        Load {
            requests_per_s: sum(|rates| rates.requests),
            answers_per_s: sum(|rates| rates.responses),
            errors_per_s: sum(|rates| rates.errors),
            no_records_per_s: sum(|rates| rates.no_records),
            dropped_per_s: sum(|rates| rates.dropped),
            in_flight: any.then_some(in_flight),
            lag_ms: lags.reduce(f64::max).filter(|_| seen.announced.fabric_generation > 0),
            ..latencies(&latency)
        }
    }

    /// Answers by type, with the key under which their history is kept.
    pub(super) fn type_rates(&self) -> Vec<((u16, String), TypeRate)> {
        let mut by_type: HashMap<(u16, String), TypeRate> = HashMap::new();
        for known in self.responders.values() {
            for (kind, per_s) in known.rates.iter().flat_map(|rates| &rates.answers) {
                let key = (kind.attribute, kind.method.clone());
                let rate = by_type.entry(key).or_insert_with(|| TypeRate {
                    attribute: attribute_name(kind.attribute),
                    method: kind.method.clone(),
                    ..TypeRate::default()
                });
                rate.per_s += per_s;
                rate.total += kind.count;
                rate.errors_per_s += if kind.is_error() { *per_s } else { 0.0 };
                rate.no_records_per_s += if kind.is_no_records() { *per_s } else { 0.0 };
            }
        }
        let mut types: Vec<_> = by_type.into_iter().collect();
        for (_, rate) in &mut types {
            for per_s in [&mut rate.per_s, &mut rate.errors_per_s, &mut rate.no_records_per_s] {
                *per_s = rounded(*per_s);
            }
        }
        types.sort_by(|(a, one), (b, other)| {
            other.per_s.total_cmp(&one.per_s).then(other.total.cmp(&one.total)).then(a.cmp(b))
        });
        types
    }

    /// Dropped requests by reason.
    pub(super) fn drop_rates(&self) -> Vec<DropRate> {
        let mut by_reason: BTreeMap<&str, DropRate> = BTreeMap::new();
        for known in self.responders.values() {
            let Some((rates, (last, _))) = known.rates.as_ref().zip(known.last.as_ref()) else {
                continue;
            };
            for ((reason, per_s), (_, total)) in rates.reasons.iter().zip(&last.dropped) {
                let rate = by_reason.entry(reason).or_default();
                rate.per_s += per_s;
                rate.total += total;
            }
        }
        let mut drops: Vec<_> = by_reason
            .into_iter()
            .map(|(reason, rate)| DropRate {
                reason: reason.to_owned(),
                per_s: rounded(rate.per_s),
                total: rate.total,
            })
            .collect();
        drops.sort_by(|a, b| b.per_s.total_cmp(&a.per_s).then(b.total.cmp(&a.total)));
        drops
    }

    /// The most active requesters, with their share of `requests_per_s`.
    pub(super) fn talkers(&self, requests_per_s: Option<f64>) -> Vec<Talker> {
        let all = requests_per_s.unwrap_or(0.0);
        let top = self.talkers.top(TALKERS_MAX).into_iter();
        top.map(|(lid, per_s)| {
            let owner = self.names.of_lid(lid);
            let share = if all > 0.0 { (per_s / all).min(1.0) } else { 0.0 };
            Talker {
                lid,
                node: owner.name,
                guid: owner.guid,
                left: owner.has_left,
                per_s: rounded(per_s),
                share: (share * 1e4).round() / 1e4,
            }
        })
        .collect()
    }
}

/// Name of an attribute, or its number.
pub(super) fn attribute_name(id: u16) -> String {
    match attribute::name(AttributeId(id)) {
        Some(name) => name.to_owned(),
        // Responders report all attributes that the class does not define as 0.
        None if id == 0 => "unknown".to_owned(),
        None => format!("{id:#06x}"),
    }
}
