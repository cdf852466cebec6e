//! Selects the `Fm` instance of the subnet.
//!
//! A file may configure the managers of several subnets, one `Fm` each; `Common` is for all of
//! them. The instance is selected by the `Name` in its `Shared` section if one is requested, else
//! by `SubnetPrefix`.

use super::section::Remark;
use super::xml::{Element, Fault};
use super::{Reason, value};

/// Prefix of subnets that are not connected to others, which an instance without SubnetPrefix has.
const PREFIX_DEFAULT: u64 = 0xFE80_0000_0000_0000;

/// Which instance of a file to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instance<'a> {
    /// The name of the instance; if `None`, that with the subnet prefix.
    pub name: Option<&'a str>,
    /// The subnet prefix.
    pub prefix: u64,
}

impl Default for Instance<'_> {
    fn default() -> Self {
        Self { name: None, prefix: PREFIX_DEFAULT }
    }
}

/// An instance of the file.
struct Candidate<'a> {
    element: &'a Element,
    name: Option<String>,
    prefix: u64,
}

/// Selects the instance; `None` if the file has none, so that `Common` is all.
pub(super) fn select<'a>(
    root: &'a Element,
    wanted: &Instance<'_>,
    remark: Remark<'_>,
) -> Result<Option<&'a Element>, Fault> {
    let mut all = Vec::new();
    for element in root.all("Fm") {
        let shared = |name| element.all("Shared").flat_map(move |part| part.all(name)).next();
        let prefix = match shared("SubnetPrefix") {
            Some(prefix) => value::prefix(prefix)?,
            None => PREFIX_DEFAULT,
        };
        let name = shared("Name").map(|name| name.text.clone());
        all.push(Candidate { element, name, prefix });
    }
    let fits = |each: &&Candidate<'_>| match wanted.name {
        Some(name) => each.name.as_deref() == Some(name),
        None => each.prefix == wanted.prefix,
    };
    let fitting: Vec<&Candidate<'_>> = all.iter().filter(fits).collect();
    match fitting[..] {
        [only] => {
            if only.prefix != wanted.prefix {
                let (theirs, ours) = (only.prefix, wanted.prefix);
                let text = format!("SubnetPrefix is {theirs:#018x}, but that of ibsm {ours:#018x}");
                remark(only.element.line, &text);
            }
            Ok(Some(only.element))
        }
        [] if all.is_empty() && wanted.name.is_none() => Ok(None),
        _ => {
            let line = all.first().map_or(root.line, |first| first.element.line);
            let criterion = match wanted.name {
                Some(name) => format!("Name '{name}'"),
                None => format!("SubnetPrefix {:#018x}", wanted.prefix),
            };
            let instances: Vec<String> = all.iter().take(LISTED_MAX).map(described).collect();
            let mut instances = instances.join(", ");
            if let Some(more @ 1..) = all.len().checked_sub(LISTED_MAX) {
                instances.push_str(&format!(" and {more} more"));
            }
            Err((line, Reason::Instance { count: fitting.len(), criterion, instances }))
        }
    }
}

/// Instances that an error lists.
const LISTED_MAX: usize = 8;

fn described(each: &Candidate<'_>) -> String {
    let name = each.name.as_deref().unwrap_or("one without Name");
    format!("{name} (line {}, SubnetPrefix {:#018x})", each.element.line, each.prefix)
}
