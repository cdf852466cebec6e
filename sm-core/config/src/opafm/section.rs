//! Parses the sections of the file; each value is checked by itself.

use ib_mad::types::{Gid, Guid, Mtu, PKey, Rate, Sl};

use super::pattern::NodePattern;
use super::xml::{Element, Fault};
use super::{ENTRIES_MAX, HOQ_LIFE_LAST, Reason, Select, Traffic, unread, value};

/// The content of the sections; references are still names.
#[derive(Debug, Default)]
pub(super) struct Raw {
    pub(super) applications: Vec<RawApplication>,
    pub(super) device_groups: Vec<RawDeviceGroup>,
    pub(super) qos_groups: Vec<RawQosGroup>,
    pub(super) virtual_fabrics: Vec<RawVirtualFabric>,
    pub(super) multicast_groups: Vec<RawMulticastGroup>,
}

/// A name, and its line number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reference {
    pub(super) name: String,
    pub(super) line: usize,
}

/// An Application whose includes are still names.
#[derive(Debug, Default)]
pub(super) struct RawApplication {
    pub(super) name: String,
    pub(super) line: usize,
    pub(super) traffic: Traffic,
    pub(super) includes: Vec<Reference>,
}

/// A DeviceGroup whose includes are still names.
#[derive(Debug, Default)]
pub(super) struct RawDeviceGroup {
    pub(super) name: String,
    pub(super) line: usize,
    pub(super) system_images: Vec<Guid>,
    pub(super) nodes: Vec<Guid>,
    pub(super) ports: Vec<Guid>,
    pub(super) descriptions: Vec<NodePattern>,
    pub(super) select: Select,
    pub(super) includes: Vec<Reference>,
}

/// Settings common to QOSGroups and virtual fabrics.
#[derive(Debug, Default)]
pub(super) struct RawQos {
    pub(super) base_sl: Option<Sl>,
    pub(super) multicast_sl: Option<Sl>,
    pub(super) lifetime_shift: Option<u8>,
    /// Percent, and the line that has it.
    pub(super) bandwidth: Option<(u8, usize)>,
    pub(super) high_priority: Option<bool>,
    /// As a code n: 4.096 µs × 2^n.
    pub(super) hoq_life: Option<u8>,
}

/// A QOSGroup.
#[derive(Debug, Default)]
pub(super) struct RawQosGroup {
    pub(super) name: String,
    pub(super) line: usize,
    pub(super) enable: bool,
    pub(super) qos: RawQos,
}

/// A VirtualFabric whose groups and applications are still names.
#[derive(Debug, Default)]
pub(super) struct RawVirtualFabric {
    pub(super) name: String,
    pub(super) line: usize,
    pub(super) enable: bool,
    pub(super) standby: bool,
    pub(super) pkey: Option<PKey>,
    pub(super) security: bool,
    pub(super) qos_group: Option<Reference>,
    /// `QOS`, if present.
    pub(super) qos_enable: Option<bool>,
    pub(super) qos: RawQos,
    pub(super) mtu_max: Option<Mtu>,
    pub(super) rate_max: Option<Rate>,
    pub(super) members: Vec<Reference>,
    pub(super) limited_members: Vec<Reference>,
    pub(super) applications: Vec<Reference>,
}

/// A MulticastGroup whose virtual fabric is still a name.
#[derive(Debug)]
pub(super) struct RawMulticastGroup {
    pub(super) line: usize,
    pub(super) virtual_fabric: Option<Reference>,
    pub(super) pkey: Option<PKey>,
    pub(super) mgids: Vec<Gid>,
    pub(super) mtu: Mtu,
    pub(super) rate: Rate,
    pub(super) sl: Option<Sl>,
    pub(super) qkey: u32,
    pub(super) flow_label: u32,
    pub(super) tclass: u8,
}

/// Receives the line number and text of oddities that are not errors.
pub(super) type Remark<'a> = &'a mut dyn FnMut(usize, &str);

/// Parses the sections of `Common` and of the instance `fm`, if the file has instances.
pub(super) fn config(
    root: &Element,
    fm: Option<&Element>,
    remark: Remark<'_>,
) -> Result<Raw, Fault> {
    unread::report(root, fm, remark);
    let mut raw = Raw::default();
    for scope in root.all("Common").chain(fm) {
        read_scope(scope, &mut raw, remark)?;
        for part in scope.children.iter().filter(|part| ["Shared", "Sm"].contains(&&*part.name)) {
            read_scope(part, &mut raw, remark)?;
        }
    }
    Ok(raw)
}

fn read_scope(scope: &Element, raw: &mut Raw, remark: Remark<'_>) -> Result<(), Fault> {
    for section in &scope.children {
        let entries = |name| section.all(name);
        match section.name.as_str() {
            "Applications" => {
                only(section, &["Application"], remark);
                for entry in entries("Application") {
                    raw.applications.push(application(entry, remark)?);
                    limit(raw.applications.len(), entry, "applications")?;
                }
            }
            "DeviceGroups" => {
                only(section, &["DeviceGroup"], remark);
                for entry in entries("DeviceGroup") {
                    raw.device_groups.push(device_group(entry, remark)?);
                    limit(raw.device_groups.len(), entry, "device groups")?;
                }
            }
            "QOSGroups" => {
                only(section, &["QOSGroup"], remark);
                for entry in entries("QOSGroup") {
                    raw.qos_groups.push(qos_group(entry, remark)?);
                    limit(raw.qos_groups.len(), entry, "QOSGroups")?;
                }
            }
            "VirtualFabrics" => {
                only(section, &["VirtualFabric"], remark);
                for entry in entries("VirtualFabric") {
                    raw.virtual_fabrics.push(virtual_fabric(entry, remark)?);
                    limit(raw.virtual_fabrics.len(), entry, "virtual fabrics")?;
                }
            }
            "Multicast" | "MulticastGroups" => {
                for entry in entries("MulticastGroup") {
                    raw.multicast_groups.extend(multicast_group(entry, remark)?);
                    limit(raw.multicast_groups.len(), entry, "multicast groups")?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Parses the applications and device groups of a fragment that begins with `Common`.
pub(super) fn fragment(root: &Element) -> Result<Raw, Fault> {
    let mut raw = Raw::default();
    read_scope(root, &mut raw, &mut |_, _| {})?;
    Ok(raw)
}

fn limit(count: usize, entry: &Element, what: &'static str) -> Result<(), Fault> {
    if count > ENTRIES_MAX { Err((entry.line, Reason::TooMany(what))) } else { Ok(()) }
}

/// Reports children whose names are not in `known`.
fn only(element: &Element, known: &[&'static str], remark: Remark<'_>) {
    for child in &element.children {
        if !known.contains(&child.name.as_str()) {
            unknown(child, element, known, remark);
        }
    }
}

fn unknown(child: &Element, parent: &Element, known: &[&'static str], remark: Remark<'_>) {
    let nearest = super::super::file::nearest_of(&child.name, known.iter().copied());
    let hint = nearest.map_or_else(String::new, |name| format!("; did you mean {name}?"));
    let text = format!("{} has no {} and it is ignored{hint}", parent.name, child.name);
    remark(child.line, &text);
}

/// Sets a value that may occur only once.
fn once<T>(slot: &mut Option<T>, element: &Element, place: &str, value: T) -> Result<(), Fault> {
    if slot.replace(value).is_some() {
        let (tag, place) = (element.name.clone(), place.to_owned());
        return Err((element.line, Reason::Repeated { tag, place }));
    }
    Ok(())
}

fn needs_name(name: Option<String>, element: &Element) -> Result<String, Fault> {
    let missing = || Reason::Missing { tag: "Name", place: format!("this {}", element.name) };
    name.ok_or_else(|| (element.line, missing()))
}

fn reference(element: &Element) -> Result<Reference, Fault> {
    Ok(Reference { name: value::name(element)?, line: element.line })
}

fn wrong<T>(element: &Element, expected: &'static str) -> Result<T, Fault> {
    let (tag, got) = (element.name.clone(), element.text.clone());
    Err((element.line, Reason::Value { tag, expected, got }))
}

fn application(element: &Element, remark: Remark<'_>) -> Result<RawApplication, Fault> {
    const KNOWN: &[&str] = &[
        "Name",
        "ServiceID",
        "ServiceIDRange",
        "ServiceIDMasked",
        "MGID",
        "MGIDRange",
        "MGIDMasked",
        "IncludeApplication",
        "Select",
    ];
    let mut name = None;
    let mut raw = RawApplication { line: element.line, ..RawApplication::default() };
    let traffic = &mut raw.traffic;
    for child in &element.children {
        match child.name.as_str() {
            "Name" => once(&mut name, child, &element.name, value::name(child)?)?,
            "ServiceID" => traffic.service_ids.push(value::service_id(child)?),
            "ServiceIDRange" => traffic.service_ids.push(value::service_id_range(child)?),
            "ServiceIDMasked" => traffic.service_ids.push(value::service_id_masked(child)?),
            "MGID" => traffic.mgids.push(value::mgid_single(child)?),
            "MGIDRange" => traffic.mgids.extend(value::mgid_range(child)?),
            "MGIDMasked" => traffic.mgids.push(value::mgid_masked(child)?),
            "IncludeApplication" => raw.includes.push(reference(child)?),
            "Select" => match child.text.to_ascii_lowercase().as_str() {
                "sa" => traffic.sa = true,
                "pm" => traffic.pm = true,
                "unmatchedserviceid" => traffic.unmatched_service_ids = true,
                "unmatchedmgid" => traffic.unmatched_mgids = true,
                _ => return wrong(child, "SA, PM, UnmatchedServiceID or UnmatchedMGID"),
            },
            _ => unknown(child, element, KNOWN, remark),
        }
    }
    raw.name = needs_name(name, element)?;
    Ok(raw)
}

fn device_group(element: &Element, remark: Remark<'_>) -> Result<RawDeviceGroup, Fault> {
    const KNOWN: &[&str] = &[
        "Name",
        "SystemImageGUID",
        "NodeGUID",
        "PortGUID",
        "NodeDesc",
        "NodeType",
        "Select",
        "IncludeGroup",
    ];
    let mut name = None;
    let mut raw = RawDeviceGroup { line: element.line, ..RawDeviceGroup::default() };
    for child in &element.children {
        match child.name.as_str() {
            "Name" => once(&mut name, child, &element.name, value::name(child)?)?,
            "SystemImageGUID" => raw.system_images.push(value::guid(child)?),
            "NodeGUID" => raw.nodes.push(value::guid(child)?),
            "PortGUID" => raw.ports.push(value::guid(child)?),
            "NodeDesc" => match NodePattern::read(&child.text) {
                Some(pattern) => raw.descriptions.push(pattern),
                None => {
                    return wrong(child, "a description, with *, ? and ranges such as [01-16]");
                }
            },
            "NodeType" => match child.text.to_ascii_uppercase().as_str() {
                "FI" => raw.select.interfaces = true,
                "SW" => raw.select.switches = true,
                _ => return wrong(child, "FI or SW"),
            },
            "Select" => match child.text.to_ascii_lowercase().as_str() {
                "all" => raw.select.all = true,
                "self" => raw.select.own = true,
                "swe0" => raw.select.enhanced_port0 = true,
                "tfis" => raw.select.targets = true,
                "hfidirectconnect" => raw.select.direct = true,
                "allmgmtallowed" | "allsms" => raw.select.management = true,
                _ => {
                    let all = "All, Self, SWE0, TFIs, HFIDirectConnect or AllMgmtAllowed";
                    return wrong(child, all);
                }
            },
            "IncludeGroup" => raw.includes.push(reference(child)?),
            _ => unknown(child, element, KNOWN, remark),
        }
    }
    raw.name = needs_name(name, element)?;
    Ok(raw)
}

/// QoS settings that InfiniBand has no equivalent of, and the reason.
const QOS_WITHOUT_EFFECT: [(&str, &str); 3] = [
    ("FlowControlDisable", "all data VLs of an InfiniBand port have flow control"),
    ("PreemptRank", "a packet on an InfiniBand link cannot be preempted"),
    ("RespSL", "responses have the SL of the path that they are sent on"),
];

/// Parses `child` if it is a QoS setting; returns whether it was.
fn qos_setting(
    qos: &mut RawQos,
    child: &Element,
    place: &str,
    remark: Remark<'_>,
) -> Result<bool, Fault> {
    match child.name.as_str() {
        "BaseSL" => once(&mut qos.base_sl, child, place, value::sl(child)?)?,
        "MulticastSL" => once(&mut qos.multicast_sl, child, place, value::sl(child)?)?,
        "PktLifeTimeMult" => {
            once(&mut qos.lifetime_shift, child, place, value::shift(child)?)?;
        }
        "Bandwidth" => {
            once(&mut qos.bandwidth, child, place, (value::percent(child)?, child.line))?;
        }
        "HighPriority" => once(&mut qos.high_priority, child, place, value::flag(child)?)?,
        "HoqLife" | "HoqLife_Int" => {
            let code = if child.name == "HoqLife" {
                value::hoq_life(child)?
            } else {
                value::number(child, u64::from(u8::MAX), "a code n: 4.096 µs × 2^n")? as u8
            };
            let code = shortened(code, child, remark);
            once(&mut qos.hoq_life, child, place, code)?;
        }
        other => {
            let known = QOS_WITHOUT_EFFECT.iter().find(|(name, _)| *name == other);
            let Some((name, reason)) = known else { return Ok(false) };
            // 0 turns off what InfiniBand does not have, or keeps what it always has.
            if child.text != "0" || other == "RespSL" {
                remark(child.line, &format!("{name} has no effect: {reason}"));
            }
        }
    }
    Ok(true)
}

/// A HOQLife that InfiniBand has: longer ones, if not infinite, become the longest.
fn shortened(code: u8, element: &Element, remark: Remark<'_>) -> u8 {
    if code <= HOQ_LIFE_LAST || element.text.eq_ignore_ascii_case("infinite") {
        return code;
    }
    let text = &element.text;
    let longest = format!("{} {text} is longer than InfiniBand's longest, 2.1 s", element.name);
    remark(element.line, &format!("{longest}, which is used"));
    HOQ_LIFE_LAST
}

fn qos_group(element: &Element, remark: Remark<'_>) -> Result<RawQosGroup, Fault> {
    const KNOWN: &[&str] = &[
        "Name",
        "Enable",
        "BaseSL",
        "MulticastSL",
        "PktLifeTimeMult",
        "Bandwidth",
        "HighPriority",
        "HoqLife",
        "HoqLife_Int",
    ];
    let (mut name, mut enable) = (None, None);
    let mut qos = RawQos::default();
    for child in &element.children {
        match child.name.as_str() {
            "Name" => once(&mut name, child, &element.name, value::name(child)?)?,
            "Enable" => once(&mut enable, child, &element.name, value::flag(child)?)?,
            _ if qos_setting(&mut qos, child, &element.name, remark)? => {}
            _ => unknown(child, element, KNOWN, remark),
        }
    }
    let (name, enable) = (needs_name(name, element)?, enable.unwrap_or(false));
    Ok(RawQosGroup { name, line: element.line, enable, qos })
}

fn virtual_fabric(element: &Element, remark: Remark<'_>) -> Result<RawVirtualFabric, Fault> {
    const KNOWN: &[&str] = &[
        "Name",
        "Enable",
        "Standby",
        "PKey",
        "Security",
        "QOS",
        "QOSGroup",
        "BaseSL",
        "MulticastSL",
        "PktLifeTimeMult",
        "Bandwidth",
        "HighPriority",
        "HoqLife",
        "HoqLife_Int",
        "MaxMTU",
        "MaxRate",
        "Member",
        "LimitedMember",
        "Application",
    ];
    let (mut name, mut enable, mut standby, mut security) = (None, None, None, None);
    let (mut mtu_max, mut rate_max) = (None, None);
    let mut raw = RawVirtualFabric { line: element.line, ..RawVirtualFabric::default() };
    let place = &element.name;
    for child in &element.children {
        match child.name.as_str() {
            "Name" => once(&mut name, child, place, value::name(child)?)?,
            "Enable" => once(&mut enable, child, place, value::flag(child)?)?,
            "Standby" => once(&mut standby, child, place, value::flag(child)?)?,
            "Security" => once(&mut security, child, place, value::flag(child)?)?,
            "PKey" => once(&mut raw.pkey, child, place, value::pkey(child)?)?,
            "QOS" => once(&mut raw.qos_enable, child, place, value::flag(child)?)?,
            "QOSGroup" => once(&mut raw.qos_group, child, place, reference(child)?)?,
            "MaxMTU" => once(&mut mtu_max, child, place, value::mtu(child)?)?,
            "MaxRate" => once(&mut rate_max, child, place, value::rate(child)?)?,
            "Member" => raw.members.push(reference(child)?),
            "LimitedMember" => raw.limited_members.push(reference(child)?),
            "Application" => raw.applications.push(reference(child)?),
            _ if qos_setting(&mut raw.qos, child, place, remark)? => {}
            _ => unknown(child, element, KNOWN, remark),
        }
    }
    raw.enable = enable.unwrap_or(true);
    raw.standby = standby.unwrap_or(false);
    raw.security = security.unwrap_or(false);
    (raw.mtu_max, raw.rate_max) = (mtu_max.flatten(), rate_max.flatten());
    if raw.enable {
        raw.name = needs_name(name, element)?;
    } else {
        raw.name = name.unwrap_or_default();
    }
    Ok(raw)
}

/// Parses a multicast group; `None` if it is not to be created.
fn multicast_group(
    element: &Element,
    remark: Remark<'_>,
) -> Result<Option<RawMulticastGroup>, Fault> {
    const KNOWN: &[&str] = &[
        "Create",
        "VirtualFabric",
        "PKey",
        "MGID",
        "MTU",
        "Rate",
        "SL",
        "QKey",
        "FlowLabel",
        "TClass",
    ];
    let (mut create, mut virtual_fabric, mut pkey, mut sl) = (None, None, None, None);
    let (mut mtu, mut rate, mut qkey) = (None, None, None);
    let (mut flow_label, mut tclass) = (None, None);
    let mut mgids = Vec::new();
    let place = &element.name;
    for child in &element.children {
        match child.name.as_str() {
            "Create" => once(&mut create, child, place, value::flag(child)?)?,
            "VirtualFabric" => once(&mut virtual_fabric, child, place, reference(child)?)?,
            "PKey" => once(&mut pkey, child, place, value::pkey(child)?)?,
            "MGID" => mgids.push(value::mgid(child)?),
            "MTU" => once(&mut mtu, child, place, value::mtu(child)?)?,
            "Rate" => once(&mut rate, child, place, value::rate(child)?)?,
            "SL" => once(&mut sl, child, place, value::sl(child)?)?,
            "QKey" => {
                let number = value::number(child, u32::MAX.into(), "a Q_Key of 32 bits")?;
                once(&mut qkey, child, place, number as u32)?;
            }
            "FlowLabel" => {
                let number = value::number(child, 0xF_FFFF, "a flow label of 20 bits")?;
                once(&mut flow_label, child, place, number as u32)?;
            }
            "TClass" => {
                let number = value::number(child, 0xFF, "a traffic class of 8 bits")?;
                once(&mut tclass, child, place, number as u8)?;
            }
            _ => unknown(child, element, KNOWN, remark),
        }
    }
    // A value too large for InfiniBand becomes the largest one.
    let (mtu, rate) = (mtu.unwrap_or(Some(Mtu::B2048)), rate.unwrap_or(Some(Rate::Gbps25)));
    Ok(create.unwrap_or(true).then(|| RawMulticastGroup {
        line: element.line,
        virtual_fabric,
        pkey,
        mgids,
        mtu: mtu.unwrap_or(Mtu::B4096),
        rate: rate.unwrap_or(Rate::Gbps25),
        sl,
        qkey: qkey.unwrap_or(0),
        flow_label: flow_label.unwrap_or(0),
        tclass: tclass.unwrap_or(0),
    }))
}
