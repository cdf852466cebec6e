//! Reports sections of the file that have no effect, each kind once.

use std::collections::BTreeSet;

use super::section::Remark;
use super::xml::Element;

/// Sections that are read, of `Common` and of an instance.
const READ: [&str; 7] = [
    "Applications",
    "DeviceGroups",
    "QOSGroups",
    "VirtualFabrics",
    "MulticastGroups",
    "Multicast",
    "Shared",
];

/// Settings of `Shared` that are read, or that say nothing about the subnet.
const SHARED: [&str; 3] = ["Name", "SubnetPrefix", "Start"];

/// Reports what is not read of the file and of the instance `fm`.
pub(super) fn report(root: &Element, fm: Option<&Element>, remark: Remark<'_>) {
    let mut report = Report { seen: BTreeSet::new(), remark };
    for other in root.children.iter().filter(|each| !["Common", "Fm"].contains(&&*each.name)) {
        report.section(other);
    }
    for scope in root.all("Common").chain(fm) {
        for section in &scope.children {
            match section.name.as_str() {
                "Sm" => {
                    let of_groups = |name: &str| READ[..6].contains(&name);
                    report.settings(section, of_groups, "MulticastGroups");
                }
                "Shared" => {
                    let is_read = |name: &str| SHARED.contains(&name) || READ[..6].contains(&name);
                    report.settings(section, is_read, "Name and SubnetPrefix");
                }
                name if READ.contains(&name) => {}
                _ => report.section(section),
            }
            let parts = section.all("Multicast").chain(section.all("MulticastGroups"));
            let multicast = ["Multicast", "MulticastGroups"].contains(&&*section.name);
            for part in parts.chain(multicast.then_some(section)) {
                report.settings(part, |name| name == "MulticastGroup", "MulticastGroup");
            }
        }
    }
}

struct Report<'a> {
    /// Kinds of sections that were reported.
    seen: BTreeSet<String>,
    remark: Remark<'a>,
}

impl Report<'_> {
    /// Reports a section of which nothing is read.
    fn section(&mut self, section: &Element) {
        if self.seen.insert(section.name.clone()) {
            let text = format!("{} has no effect; ibsm reads no such section", section.name);
            (self.remark)(section.line, &text);
        }
    }

    /// Reports a section of which nothing but `read` is read, if it has something else.
    fn settings(&mut self, section: &Element, is_read: impl Fn(&str) -> bool, read: &str) {
        let Some(first) = section.children.iter().find(|child| !is_read(&child.name)) else {
            return;
        };
        if self.seen.insert(section.name.clone()) {
            let name = &section.name;
            let text = format!(
                "settings of {name} other than {read} have no effect; the first is {}. Set those \
                 of ibsm in opensm.conf",
                first.name
            );
            (self.remark)(first.line, &text);
        }
    }
}
