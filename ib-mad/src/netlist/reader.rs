//! Reads net files: the topology files of `ibsim` and the output of `ibnetdiscover`.
//!
//! Reads one line at a time, without looking back: settings (`vendid=`, `switchguid=` ...) apply to
//! nodes that follow, and a node line starts a record of port lines. Peers are resolved at the end
//! (`links`), so nodes may come in any order. Differences from `ibsim`: a link given on one side
//! only is sufficient, unknown lines are errors instead of being skipped, and port GUIDs in
//! parentheses are used.

mod line;
mod links;

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::types::Guid;

use self::line::{NodeLine, PortLine};
use self::links::Claim;
use super::{
    LinkRate, LinkSpeed, LinkWidth, NODES_MAX, Net, NetError, Node, NodeKind, PortRef, Problem,
};

/// Size limit of a file; 48,000 nodes need about 10 MB.
const FILE_SIZE_MAX: u64 = 1 << 28;
/// Limit of nested includes, as in `ibsim`.
const INCLUDE_DEPTH_MAX: usize = 9;
/// Length limit of a module prefix, as in `ibsim`.
const MODULE_LEN_MAX: usize = 20;

impl Net {
    /// Reads a net file and the files it includes: by paths relative to itself, or else to the
    /// working directory.
    pub fn read(path: &Path) -> Result<Self, NetError> {
        let mut reader = Reader::new(true);
        let file = reader.begin_file(path.display().to_string());
        let text = read_file(path).map_err(|problem| reader.error(file, 0, problem))?;
        reader.text(file, &text, path.parent().unwrap_or(Path::new("")), 1)?;
        reader.finish()
    }

    /// Parses the text of a net file; errors name it `name`. The text cannot include files.
    pub fn parse(name: &str, text: &str) -> Result<Self, NetError> {
        let mut reader = Reader::new(false);
        let file = reader.begin_file(name.to_owned());
        reader.text(file, text, Path::new(""), 1)?;
        reader.finish()
    }
}

/// Location of a statement: an index into `Reader::files` and a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    file: u32,
    line: u32,
}

/// Settings of earlier lines that apply to nodes that follow.
struct Settings {
    /// Per node type: the base that was set last, and the GUID of the next node.
    guids: [GuidBase; 3],
    vendor_id: u32,
    device_id: u16,
    system_image_guid: Option<Guid>,
    /// The GUID in parentheses after `switchguid=`.
    port_guid: Option<Guid>,
    rate: DefaultRate,
    /// Prefixed to ids as `module#id`.
    module: String,
}

#[derive(Clone, Copy)]
struct GuidBase {
    base: u64,
    next: u64,
}

/// `width=`, `speed=` and `extspeed=`, as masks.
#[derive(Clone, Copy)]
struct DefaultRate {
    width: u8,
    speed: u8,
    extended: u8,
}

struct Reader {
    net: Net,
    may_include: bool,
    files: Vec<String>,
    settings: Settings,
    by_id: HashMap<String, u32>,
    by_guid: HashMap<Guid, u32>,
    /// Location of each node line.
    node_places: Vec<Place>,
    claims: Vec<Claim>,
    aliases: HashMap<String, PortRef>,
    /// The node that port lines may follow.
    open: Option<u32>,
}

impl Reader {
    fn new(may_include: bool) -> Self {
        let base = |base| GuidBase { base, next: base };
        Self {
            net: Net::new(),
            may_include,
            files: Vec::new(),
            settings: Settings {
                // Initial values of ibsim, which has none for routers.
                guids: [base(0x10_0000), base(0x20_0000), base(0x30_0000)],
                vendor_id: 0,
                device_id: 0,
                system_image_guid: None,
                port_guid: None,
                rate: DefaultRate { width: LinkWidth::X4.bit(), speed: 1, extended: 0 },
                module: String::new(),
            },
            by_id: HashMap::new(),
            by_guid: HashMap::new(),
            node_places: Vec::new(),
            claims: Vec::new(),
            aliases: HashMap::new(),
            open: None,
        }
    }

    fn begin_file(&mut self, name: String) -> u32 {
        self.files.push(name);
        (self.files.len() - 1) as u32
    }

    fn error(&self, file: u32, line: u32, problem: Problem) -> NetError {
        NetError { file: self.files[file as usize].clone(), line: line as usize, problem }
    }

    fn text(
        &mut self,
        file: u32,
        text: &str,
        directory: &Path,
        depth: usize,
    ) -> Result<(), NetError> {
        for (number, line) in (1..).zip(text.lines()) {
            let place = Place { file, line: number };
            let line = line.trim_end();
            if let Some(rest) = line.strip_prefix("include") {
                self.open = None;
                self.include(place, rest, directory, depth)?;
            } else {
                self.line(place, line).map_err(|problem| self.error(file, number, problem))?;
            }
        }
        self.open = None;
        Ok(())
    }

    fn include(
        &mut self,
        place: Place,
        rest: &str,
        directory: &Path,
        depth: usize,
    ) -> Result<(), NetError> {
        let fail = |reader: &Self, problem| reader.error(place.file, place.line, problem);
        let Some((name, _)) = line::quoted(rest).filter(|(name, _)| !name.is_empty()) else {
            return Err(fail(self, Problem::IncludeLine));
        };
        let mut path = directory.join(name);
        if !path.exists() {
            path = PathBuf::from(name);
        }
        if !self.may_include {
            return Err(fail(self, Problem::IncludeWithoutFile { path }));
        }
        if depth == INCLUDE_DEPTH_MAX {
            return Err(fail(self, Problem::IncludeDepth { path, limit: INCLUDE_DEPTH_MAX }));
        }
        let text = read_file(&path).map_err(|problem| fail(self, problem))?;
        let file = self.begin_file(path.display().to_string());
        self.text(file, &text, path.parent().unwrap_or(Path::new("")), depth + 1)
    }

    fn line(&mut self, place: Place, line: &str) -> Result<(), Problem> {
        if line.starts_with('#') {
            return Ok(()); // A comment does not end a record.
        }
        if line.starts_with('[') || line.starts_with("@[") {
            return self.port_line(place, line);
        }
        self.open = None;
        if let Some((kind, keyword, rest)) = line::node_keyword(line) {
            return self.node_line(place, kind, keyword, rest);
        }
        if let Some(command) = line.strip_prefix("do ") {
            self.net.commands.push(command.trim().to_owned());
            return Ok(());
        }
        // Group headings of `ibnetdiscover -g`, and a debug switch of ibsim.
        let headings = ["Chassis ", "Hostname:", "Non-Chassis Nodes", "pdebug"];
        if line.is_empty() || headings.iter().any(|heading| line.starts_with(heading)) {
            return Ok(());
        }
        self.setting(line)
    }

    fn setting(&mut self, line: &str) -> Result<(), Problem> {
        let unknown = || Problem::UnknownLine { line: line.chars().take(60).collect() };
        let split = line.find(['=', '+']).ok_or_else(unknown)?;
        let (key, relative) = (line[..split].trim(), line.as_bytes()[split] == b'+');
        let value = line[split + 1..].split('#').next().unwrap_or("").trim();
        let settings = &mut self.settings;
        match key {
            "switchguid" | "caguid" | "hcaguids" | "rtguid" => {
                let (guid, rest) = line::leading_guid(value).ok_or_else(|| Problem::NotAGuid {
                    key: key.to_owned(),
                    value: value.to_owned(),
                })?;
                let kind = match key {
                    "switchguid" => NodeKind::Switch,
                    "rtguid" => NodeKind::Router,
                    _ => NodeKind::Ca,
                };
                let base = &mut settings.guids[slot(kind)];
                if relative {
                    base.next = base.base.wrapping_add(guid);
                } else {
                    *base = GuidBase { base: guid, next: guid };
                }
                settings.port_guid = line::parenthesised_guid(rest).map(|(guid, _)| guid);
            }
            "sysimgguid" => {
                let (guid, _) = line::leading_guid(value).ok_or_else(|| Problem::NotAGuid {
                    key: key.to_owned(),
                    value: value.to_owned(),
                })?;
                settings.system_image_guid = Some(Guid(guid));
            }
            "vendid" => settings.vendor_id = line::number(key, value, 24)?,
            "devid" => settings.device_id = line::number(key, value, 16)? as u16,
            "width" => settings.rate.width = width_mask(value)?.bit(),
            "speed" => settings.rate.speed = line::mask("speed", value, 1..=7)?,
            "extspeed" => settings.rate.extended = line::mask("extspeed", value, 0..=31)?,
            "module" => {
                let module = line::quoted(value).map(|(module, _)| module);
                let module = module.filter(|module| module.len() <= MODULE_LEN_MAX);
                settings.module = module.ok_or(Problem::Module)?.to_owned();
            }
            _ => return Err(unknown()),
        }
        Ok(())
    }

    fn node_line(
        &mut self,
        place: Place,
        kind: NodeKind,
        keyword: &'static str,
        rest: &str,
    ) -> Result<(), Problem> {
        let parsed = NodeLine::parse(keyword, rest)?;
        let id = self.full_id(parsed.id);
        if let Some(&other) = self.by_id.get(&id) {
            let first = self.node_places[other as usize].line as usize;
            return Err(Problem::DuplicateId { id, first });
        }
        let base = &mut self.settings.guids[slot(kind)];
        let guid = Guid(base.next);
        if let Some(&other) = self.by_guid.get(&guid) {
            let other = self.net.nodes[other as usize].id.clone();
            return Err(Problem::DuplicateGuid { guid, id, other });
        }
        if self.net.nodes.len() == NODES_MAX {
            return Err(Problem::TooManyNodes);
        }
        // Port GUIDs of a node follow its own; the next node's GUID comes after them.
        let reserved = if kind == NodeKind::Switch { 1 } else { u64::from(parsed.ports) + 1 };
        base.next = base.next.wrapping_add(reserved);

        let mut node = Node::new(kind, guid, parsed.ports, self.settings.rate.best());
        node.system_image_guid = self.settings.system_image_guid.take().unwrap_or(guid);
        node.vendor_id = std::mem::take(&mut self.settings.vendor_id);
        node.device_id = self.settings.device_id;
        node.description = parsed.description.unwrap_or(&id).to_owned();
        node.id.clone_from(&id);
        if kind == NodeKind::Switch {
            node.enhanced_port0 = parsed.enhanced_port0;
            let port_guid = self.settings.port_guid.take();
            for number in 0..=parsed.ports {
                if let (Some(port), Some(guid)) = (node.port_mut(number), port_guid) {
                    port.guid = guid;
                }
            }
            if let Some(port) = node.port_mut(0) {
                (port.lid, port.lmc) = (parsed.lid, parsed.lmc);
            }
        }
        let index = self.net.add_node(node);
        self.by_id.insert(id, index);
        self.by_guid.insert(guid, index);
        self.node_places.push(place);
        self.open = Some(index);
        Ok(())
    }

    fn port_line(&mut self, place: Place, line: &str) -> Result<(), Problem> {
        let node_index = self.open.ok_or(Problem::PortWithoutNode)?;
        let node = &mut self.net.nodes[node_index as usize];
        let kind = node.kind;
        let parsed = PortLine::parse(line, kind, node.rate)?;
        let count = node.port_count();
        // ibsim allows port 0 in records, but no cable on it.
        let number = parsed.number.parse().ok().filter(|number| (1..=count).contains(number));
        let Some((number, port)) = number.and_then(|n| Some((n, node.port_mut(n)?))) else {
            let (node, number) = (node.id.clone(), parsed.number.to_owned());
            return Err(Problem::PortNumber { node, count, number });
        };
        let here = PortRef { node: node_index, port: number };
        if parsed.is_alias {
            return self.alias(parsed.peer, here);
        }
        if let Some(rate) = parsed.rate {
            port.rate = rate;
        }
        port.vl_cap = parsed.vl_cap;
        if kind != NodeKind::Switch {
            port.guid = parsed.guid.unwrap_or(port.guid);
            (port.lid, port.lmc) = (parsed.lid, parsed.lmc);
        }
        let peer = match parsed.peer.find('@') {
            Some(0) => format!("{}{}", self.settings.module, parsed.peer),
            Some(_) => parsed.peer.to_owned(),
            None => self.full_id(parsed.peer),
        };
        self.claims.push(Claim {
            place,
            here,
            peer,
            peer_port: parsed.peer_port.to_owned(),
            peer_guid: parsed.peer_guid,
            rate: parsed.rate,
        });
        Ok(())
    }

    fn alias(&mut self, alias: &str, here: PortRef) -> Result<(), Problem> {
        let alias = format!("{}@{alias}", self.settings.module);
        if let Some(named) = self.aliases.get(&alias) {
            let node = self.net.nodes[named.node as usize].id.clone();
            return Err(Problem::DuplicateAlias { alias, node, port: named.port });
        }
        self.aliases.insert(alias, here);
        Ok(())
    }

    /// An id with the module's prefix, unless it has one already.
    fn full_id(&self, id: &str) -> String {
        let module = &self.settings.module;
        if module.is_empty() || id.contains('#') { id.to_owned() } else { format!("{module}#{id}") }
    }

    fn finish(mut self) -> Result<Net, NetError> {
        links::resolve(&mut self)?;
        Ok(self.net)
    }
}

impl DefaultRate {
    fn best(self) -> LinkRate {
        let sdr = LinkRate::default();
        LinkRate {
            width: LinkWidth::widest_of(self.width).unwrap_or(sdr.width),
            speed: LinkSpeed::fastest_of(self.speed, self.extended).unwrap_or(sdr.speed),
        }
    }
}

fn slot(kind: NodeKind) -> usize {
    match kind {
        NodeKind::Ca => 0,
        NodeKind::Switch => 1,
        NodeKind::Router => 2,
    }
}

fn width_mask(value: &str) -> Result<LinkWidth, Problem> {
    let mask = line::mask("width", value, 1..=31)?;
    let wrong = || Problem::Mask { key: "width", value: value.to_owned() };
    LinkWidth::widest_of(mask).ok_or_else(wrong)
}

/// Reads a file. Node descriptions may contain any bytes, so invalid UTF-8 is replaced rather than
/// refused.
fn read_file(path: &Path) -> Result<String, Problem> {
    let io = |error| Problem::Io { path: path.to_owned(), error };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(io)?;
    file.take(FILE_SIZE_MAX + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > FILE_SIZE_MAX {
        return Err(Problem::TooLarge { limit: FILE_SIZE_MAX });
    }
    Ok(match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
    })
}

#[cfg(test)]
mod tests;
