//! Resolves references: names become indices, and applications the traffic that identifies them.

use std::collections::HashSet;

use sa_proto::snapshot::IdMatch;

use super::section::{
    Raw, RawApplication, RawDeviceGroup, RawQos, RawQosGroup, RawVirtualFabric, Reference, Remark,
};
use super::xml::Fault;
use super::{
    Bandwidth, DeviceGroup, MulticastGroup, NESTING_MAX, OpaFm, Qos, Reason, Traffic,
    VirtualFabric, bandwidth, predefined,
};

/// Resolves all references of a file.
pub(super) fn resolve(mut raw: Raw, remark: Remark<'_>) -> Result<OpaFm, Fault> {
    predefined::complete(&mut raw);
    unique("Application", raw.applications.iter().map(|each| (&each.name, each.line)))?;
    unique("DeviceGroup", raw.device_groups.iter().map(|each| (&each.name, each.line)))?;
    unique("QOSGroup", raw.qos_groups.iter().map(|each| (&each.name, each.line)))?;
    let disabled: Vec<String> = raw
        .virtual_fabrics
        .iter()
        .filter(|each| !each.enable)
        .map(|each| each.name.clone())
        .collect();
    raw.virtual_fabrics.retain(|each| each.enable);
    unique("VirtualFabric", raw.virtual_fabrics.iter().map(|each| (&each.name, each.line)))?;

    remark_on_priority(&raw, remark);

    let device_groups = device_groups(&raw.device_groups)?;
    let mut virtual_fabrics = Vec::with_capacity(raw.virtual_fabrics.len());
    let fabrics = std::mem::take(&mut raw.virtual_fabrics);
    let applications = Applications::new(&raw.applications)?;
    for fabric in fabrics {
        virtual_fabrics.push(virtual_fabric(fabric, &raw, &applications, remark)?);
    }
    sls_are_apart(&virtual_fabrics)?;
    bandwidth::check(&virtual_fabrics)?;
    remark_on_hoq_life(&virtual_fabrics, remark);

    let mut multicast_groups = Vec::new();
    for group in raw.multicast_groups {
        let mut virtual_fabric = None;
        if let Some(reference) = &group.virtual_fabric {
            if disabled.contains(&reference.name) {
                let name = &reference.name;
                remark(reference.line, &format!("VirtualFabric '{name}' is not enabled"));
                continue;
            }
            let names = || virtual_fabrics.iter().map(|each: &VirtualFabric| &each.name);
            virtual_fabric = Some(find("VirtualFabric", reference, names)?);
        }
        multicast_groups.push(MulticastGroup {
            line: group.line,
            virtual_fabric,
            pkey: group.pkey,
            mgids: group.mgids,
            mtu: group.mtu,
            rate: group.rate,
            sl: group.sl,
            qkey: group.qkey,
            flow_label: group.flow_label,
            tclass: group.tclass,
        });
    }
    Ok(OpaFm { virtual_fabrics, device_groups, multicast_groups })
}

fn unique<'a>(
    kind: &'static str,
    names: impl Iterator<Item = (&'a String, usize)>,
) -> Result<(), Fault> {
    let mut seen = HashSet::new();
    for (name, line) in names {
        if !seen.insert(name) {
            return Err((line, Reason::Duplicate { kind, name: name.clone() }));
        }
    }
    Ok(())
}

/// Finds a reference among `names`; returns its index.
fn find<'a, I: Iterator<Item = &'a String>>(
    kind: &'static str,
    reference: &Reference,
    names: impl Fn() -> I,
) -> Result<usize, Fault> {
    names().position(|name| *name == reference.name).ok_or_else(|| {
        let candidates = names().map(String::as_str);
        let nearest = super::super::file::nearest_of(&reference.name, candidates);
        let (name, nearest) = (reference.name.clone(), nearest.map(str::to_owned));
        (reference.line, Reason::Unknown { kind, name, nearest })
    })
}

fn device_groups(raw: &[RawDeviceGroup]) -> Result<Vec<DeviceGroup>, Fault> {
    let names = || raw.iter().map(|group| &group.name);
    let mut groups = Vec::with_capacity(raw.len());
    for group in raw {
        let includes = group.includes.iter().map(|name| find("DeviceGroup", name, names));
        groups.push(DeviceGroup {
            name: group.name.clone(),
            system_images: group.system_images.clone(),
            nodes: group.nodes.clone(),
            ports: group.ports.clone(),
            descriptions: group.descriptions.clone(),
            select: group.select,
            includes: includes.collect::<Result<_, _>>()?,
        });
    }
    let edges: Vec<&[usize]> = groups.iter().map(|group| &group.includes[..]).collect();
    no_loops("DeviceGroup", &edges, |at| (raw[at].line, raw[at].name.clone()))?;
    Ok(groups)
}

/// Rejects entries that include themselves, and nesting deeper than [`NESTING_MAX`].
fn no_loops(
    kind: &'static str,
    includes: &[&[usize]],
    whose: impl Fn(usize) -> (usize, String),
) -> Result<(), Fault> {
    // Depth of each entry: 0 if not known yet, `OPEN` while it is being visited.
    const OPEN: usize = usize::MAX;
    let mut depths = vec![0; includes.len()];
    for start in 0..includes.len() {
        let mut stack = vec![(start, 0)];
        while let Some(&mut (at, ref mut next)) = stack.last_mut() {
            if depths[at] != 0 && depths[at] != OPEN {
                stack.pop();
                continue;
            }
            depths[at] = OPEN;
            if let Some(&child) = includes[at].get(*next) {
                *next += 1;
                if depths[child] == OPEN {
                    let (line, name) = whose(child);
                    return Err((line, Reason::Loop { kind, name }));
                }
                stack.push((child, 0));
                continue;
            }
            let deepest = includes[at].iter().map(|&child| depths[child]).max().unwrap_or(0);
            depths[at] = deepest + 1;
            if depths[at] > NESTING_MAX {
                let (line, name) = whose(at);
                return Err((line, Reason::Nesting { kind, name }));
            }
            stack.pop();
        }
    }
    Ok(())
}

/// The applications, and by index those that each includes.
struct Applications<'a> {
    all: &'a [RawApplication],
    includes: Vec<Vec<usize>>,
}

impl<'a> Applications<'a> {
    fn new(all: &'a [RawApplication]) -> Result<Self, Fault> {
        let names = || all.iter().map(|each| &each.name);
        let included = |each: &RawApplication| -> Result<Vec<usize>, Fault> {
            each.includes.iter().map(|name| find("Application", name, names)).collect()
        };
        let includes: Vec<Vec<usize>> = all.iter().map(included).collect::<Result<_, _>>()?;
        let borrowed: Vec<&[usize]> = includes.iter().map(Vec::as_slice).collect();
        no_loops("Application", &borrowed, |at| (all[at].line, all[at].name.clone()))?;
        Ok(Self { all, includes })
    }

    /// Returns the traffic of applications together with all that they include, and the names of
    /// these, included ones last.
    fn traffic(&self, names: &[Reference]) -> Result<(Traffic, Vec<String>), Fault> {
        let mut taken = vec![false; self.all.len()];
        let mut open: Vec<usize> = Vec::new();
        for name in names {
            open.push(find("Application", name, || self.all.iter().map(|each| &each.name))?);
        }
        let mut all: Vec<String> = Vec::new();
        for &at in &open {
            if !all.contains(&self.all[at].name) {
                all.push(self.all[at].name.clone());
            }
        }
        let named = all.len();
        while let Some(at) = open.pop() {
            if !std::mem::replace(&mut taken[at], true) {
                open.extend(&self.includes[at]);
            }
        }
        // In the order of the file, each once.
        let (mut ids, mut mgids) = (HashSet::new(), HashSet::new());
        let mut traffic = Traffic::default();
        for (application, _) in self.all.iter().zip(&taken).filter(|(_, taken)| **taken) {
            let more = &application.traffic;
            traffic.unmatched_service_ids |= more.unmatched_service_ids;
            traffic.unmatched_mgids |= more.unmatched_mgids;
            traffic.sa |= more.sa;
            traffic.pm |= more.pm;
            let new = more.service_ids.iter().filter(|id| ids.insert(identity(id)));
            traffic.service_ids.extend(new);
            let new = more.mgids.iter().filter(|mgid| mgids.insert(**mgid));
            traffic.mgids.extend(new);
            if !all[..named].contains(&application.name) {
                all.push(application.name.clone());
            }
        }
        Ok((traffic, all))
    }
}

/// A key by which duplicate Service ID matches are found.
fn identity(ids: &IdMatch) -> (bool, u64, u64) {
    match *ids {
        IdMatch::Range(first, last) => (false, first, last),
        IdMatch::Masked { value, mask } => (true, value, mask),
    }
}

fn virtual_fabric(
    fabric: RawVirtualFabric,
    raw: &Raw,
    applications: &Applications<'_>,
    remark: Remark<'_>,
) -> Result<VirtualFabric, Fault> {
    let missing = |tag| {
        let place = format!("VirtualFabric '{}'", fabric.name);
        (fabric.line, Reason::Missing { tag, place })
    };
    if fabric.members.is_empty() && fabric.limited_members.is_empty() {
        return Err(missing("Member"));
    }
    if fabric.applications.is_empty() {
        return Err(missing("Application"));
    }
    let groups = |names: &[Reference]| -> Result<Vec<usize>, Fault> {
        let all = || raw.device_groups.iter().map(|group| &group.name);
        names.iter().map(|name| find("DeviceGroup", name, all)).collect()
    };
    let (traffic, applications) = applications.traffic(&fabric.applications)?;
    Ok(VirtualFabric {
        members: groups(&fabric.members)?,
        limited_members: groups(&fabric.limited_members)?,
        traffic,
        qos: qos(&fabric, &raw.qos_groups, remark)?,
        applications,
        name: fabric.name,
        line: fabric.line,
        standby: fabric.standby,
        pkey: fabric.pkey,
        security: fabric.security,
        mtu_max: fabric.mtu_max,
        rate_max: fabric.rate_max,
    })
}

fn qos(
    fabric: &RawVirtualFabric,
    groups: &[RawQosGroup],
    remark: Remark<'_>,
) -> Result<Option<Qos>, Fault> {
    let own = &fabric.qos;
    let RawQos { base_sl, multicast_sl, lifetime_shift, bandwidth, high_priority, hoq_life } = own;
    let has_own = base_sl.or(*multicast_sl).is_some()
        || lifetime_shift.or(*hoq_life).is_some()
        || high_priority.is_some()
        || bandwidth.is_some();
    if let Some(reference) = &fabric.qos_group {
        let group = &groups[find("QOSGroup", reference, || groups.iter().map(|g| &g.name))?];
        if !group.enable {
            return Err((reference.line, Reason::Disabled(group.name.clone())));
        }
        if has_own || fabric.qos_enable.is_some() {
            let what = "has a QOSGroup, so its own QOS settings are ignored";
            remark(fabric.line, &format!("VirtualFabric '{}' {what}", fabric.name));
        }
        return checked(&group.qos, Some(group.name.clone()), group.line).map(Some);
    }
    if fabric.qos_enable == Some(true) {
        return checked(own, None, fabric.line).map(Some);
    }
    if has_own {
        let what = "does not have QOS 1, so its other QOS settings are ignored";
        remark(fabric.line, &format!("VirtualFabric '{}' {what}", fabric.name));
    }
    Ok(None)
}

fn checked(raw: &RawQos, group: Option<String>, line: usize) -> Result<Qos, Fault> {
    if raw.multicast_sl.is_some() && raw.base_sl.is_none() {
        return Err((line, Reason::Conflict("MulticastSL without BaseSL; set both or none")));
    }
    let bandwidth = match (raw.high_priority, raw.bandwidth) {
        (Some(true), _) => Bandwidth::High,
        (_, Some((percent, line))) => Bandwidth::Percent { percent, line },
        _ => Bandwidth::Rest,
    };
    Ok(Qos {
        group,
        base_sl: raw.base_sl,
        // A MulticastSL equal to BaseSL is the same as none.
        multicast_sl: raw.multicast_sl.filter(|sl| Some(*sl) != raw.base_sl),
        lifetime_shift: raw.lifetime_shift.unwrap_or(0),
        bandwidth,
        hoq_life: raw.hoq_life,
    })
}

/// Remarks on a Bandwidth beside HighPriority.
fn remark_on_priority(raw: &Raw, remark: Remark<'_>) {
    let groups = raw.qos_groups.iter().filter(|group| group.enable).map(|group| &group.qos);
    let own = raw.virtual_fabrics.iter().filter(|fabric| fabric.qos_enable == Some(true));
    let all = groups.chain(own.filter(|fabric| fabric.qos_group.is_none()).map(|each| &each.qos));
    for (_, line) in all.filter(|qos| qos.high_priority == Some(true)).filter_map(|q| q.bandwidth) {
        remark(line, "Bandwidth has no effect beside HighPriority");
    }
}

/// Remarks on a HoqLife that others do not have: InfiniBand has one per port, not per VL.
fn remark_on_hoq_life(fabrics: &[VirtualFabric], remark: Remark<'_>) {
    let life = |fabric: &VirtualFabric| fabric.qos.as_ref().and_then(|qos| qos.hoq_life);
    let active = || fabrics.iter().filter(|fabric| !fabric.standby);
    let Some(first) = active().find(|fabric| life(fabric).is_some()) else { return };
    if let Some(other) = active().find(|fabric| life(fabric) != life(first)) {
        let (name, other) = (&first.name, &other.name);
        let text = format!(
            "HoqLife of VirtualFabric '{name}' applies to '{other}' too: an InfiniBand port has \
             one HOQLife, for which the longest HoqLife of its virtual fabrics is taken"
        );
        remark(first.line, &text);
    }
}

/// Rejects a MulticastSL that is the BaseSL of any virtual fabric.
fn sls_are_apart(fabrics: &[VirtualFabric]) -> Result<(), Fault> {
    let all = || fabrics.iter().filter_map(|fabric| Some((fabric.line, fabric.qos.as_ref()?)));
    for (line, sl) in all().filter_map(|(line, qos)| Some((line, qos.multicast_sl?))) {
        if all().any(|(_, other)| other.base_sl == Some(sl)) {
            let conflict = "its MulticastSL is the BaseSL of a virtual fabric; choose another SL";
            return Err((line, Reason::Conflict(conflict)));
        }
    }
    Ok(())
}
