//! P_Keys and SLs where the file has none: the lowest that are free, in the order of the file.

use std::collections::{BTreeSet, HashMap};

use ib_mad::types::{PKey, Sl};

use sm_config::opafm::VirtualFabric;

/// The P_Key of every virtual fabric. Without security one is not set apart from others, and has
/// the default partition's unless it names another.
pub(super) fn pkeys(
    fabrics: &[VirtualFabric],
    taken: &[PKey],
    warnings: &mut Vec<String>,
) -> Vec<PKey> {
    let named = fabrics.iter().filter_map(|fabric| fabric.pkey);
    let mut used: BTreeSet<u16> = named.chain(taken.iter().copied()).map(PKey::base).collect();
    used.insert(PKey::DEFAULT_LIMITED.base());
    let mut free = 1..PKey::DEFAULT_LIMITED.base();
    fabrics
        .iter()
        .map(|fabric| match fabric.pkey {
            Some(pkey) => PKey(pkey.base()),
            None if !fabric.security => PKey::DEFAULT_LIMITED,
            None => free.find(|pkey| !used.contains(pkey)).map(PKey).unwrap_or_else(|| {
                let name = &fabric.name;
                warnings.push(format!("virtual fabric {name}: no free P_Key, using the default"));
                PKey::DEFAULT_LIMITED
            }),
        })
        .collect()
}

/// SLs of unicast and multicast of every virtual fabric. Those without QoS share SL 0; those of one
/// QOSGroup share theirs.
pub(super) fn sls(fabrics: &[VirtualFabric], warnings: &mut Vec<String>) -> Vec<(Sl, Sl)> {
    let qos = || fabrics.iter().filter_map(|fabric| fabric.qos.as_ref());
    let mut used: BTreeSet<u8> =
        qos().flat_map(|qos| [qos.base_sl, qos.multicast_sl]).flatten().map(Sl::get).collect();
    // SL 0 is for all virtual fabrics that request no SL.
    used.insert(0);
    let mut of_group: HashMap<&str, Sl> = HashMap::new();
    let mut next = |name: &str| {
        let free = (1..16).find(|sl| !used.contains(sl));
        if free.is_none() {
            warnings.push(format!("virtual fabric {name}: no free SL, using SL 0"));
        }
        let sl = free.unwrap_or(0);
        used.insert(sl);
        Sl::from_low_bits(sl.into())
    };
    let mut sls = Vec::with_capacity(fabrics.len());
    for fabric in fabrics {
        let Some(qos) = &fabric.qos else {
            sls.push((Sl::default(), Sl::default()));
            continue;
        };
        let base = match (qos.base_sl, qos.group.as_deref()) {
            (Some(sl), _) => sl,
            (None, Some(group)) => *of_group.entry(group).or_insert_with(|| next(&fabric.name)),
            (None, None) => next(&fabric.name),
        };
        sls.push((base, qos.multicast_sl.unwrap_or(base)));
    }
    sls
}
