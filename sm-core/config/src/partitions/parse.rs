//! Parses `partitions.conf`.
//!
//! ```text
//! file        definition ; definition ; …               # begins a comment, to the end of the line
//! definition  [name][=P_Key] {, flag} : properties       up to the colon on one line
//! properties  ports and groups, separated by commas or line ends
//! port        GUID | ALL | ALL_CAS | ALL_SWITCHES | ALL_ROUTERS | SELF  [= full | limited | both]
//! group       mgid=MGID {, flag}                         to the end of the line
//! ```
//!
//! Input for which OpenSM rejects the file is an error here. Input that OpenSM ignores is ignored
//! likewise and reported, since some sites' files contain it.

mod group;

use std::collections::HashMap;
use std::path::Path;

use ib_mad::types::{Guid, PKey, Sl};

use super::text::{abbreviates, name_and_value, number};
use super::{Membership, Partition, PartitionConfig, Ports, Rule, broadcast_mgid};
use crate::remarks::Remarks;
use group::Flags;

/// Why a partition file is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PartitionSyntax {
    /// Text where a definition was expected.
    #[error(
        "'{0}' does not begin a partition: expected '[name][=P_Key][,flags] :' on one line, such \
         as 'Default=0x7fff, ipoib : ALL=full ;'"
    )]
    NoDefinition(String),
    /// A P_Key that is not a number.
    #[error("P_Key '{0}' is not a number; write it like 0x7fff")]
    PKey(String),
    /// Neither a GUID nor a keyword.
    #[error(
        "'{0}' is neither a port GUID nor ALL, ALL_CAS, ALL_SWITCHES, ALL_ROUTERS or SELF{hint}",
        hint = port_hint(.0)
    )]
    Port(String),
    /// A definition within the properties of another.
    #[error("'{header}' is not allowed among ports: is the ';' at the end of line {line} missing?")]
    Unended {
        /// The text found.
        header: String,
        /// Number of the last non-empty line before it, from 1.
        line: usize,
    },
    /// A group line without address.
    #[error("mgid has no value; write it like mgid=ff12:401b::16")]
    NoMgid,
    /// All 32,767 P_Keys are taken.
    #[error("no P_Key is left for '{0}'")]
    NoPKeyLeft(String),
}

/// Largest number of reasons that are found.
const FAULTS_MAX: usize = 50;

fn port_hint(name: &str) -> &'static str {
    let hex = !name.is_empty() && name.bytes().all(|b| b.is_ascii_hexdigit());
    if hex { "; hexadecimal GUIDs begin with 0x" } else { "" }
}

/// Parses the text of a partition file; `path` is for remarks. An error has its line number, from
/// 1.
pub fn parse(
    path: &Path,
    text: &str,
    remarks: &mut Remarks,
) -> Result<PartitionConfig, (usize, PartitionSyntax)> {
    let (config, faults) = parse_all(path, text, remarks, 1);
    faults.into_iter().next().map_or(Ok(config), Err)
}

/// The reasons for which a partition file is rejected, with their lines. What follows a mistake in
/// a definition is not read.
pub fn faults(path: &Path, text: &str) -> Vec<(usize, PartitionSyntax)> {
    parse_all(path, text, &mut Remarks::default(), FAULTS_MAX).1
}

/// Parses a text until this many reasons to reject it are found.
fn parse_all(
    path: &Path,
    text: &str,
    remarks: &mut Remarks,
    faults_max: usize,
) -> (PartitionConfig, Vec<(usize, PartitionSyntax)>) {
    let mut parser = Parser {
        config: PartitionConfig::with_default(Membership::Limited),
        numbers: HashMap::from([(PKey::DEFAULT_LIMITED, 0)]),
        names: HashMap::from([("Default".to_owned(), PKey::DEFAULT_LIMITED)]),
        reserved: named_numbers(text),
        generated: 0,
        open: None,
        remarks,
        path,
        line: 0,
        filled: 0,
    };
    let (mut is_empty, mut faults, mut is_skipping) = (true, Vec::new(), false);
    'text: for (index, line) in text.lines().enumerate() {
        parser.line = index + 1;
        let content = line.split('#').next().unwrap_or_default();
        let mut pieces = content.split(';').peekable();
        while let Some(piece) = pieces.next() {
            if !piece.trim().is_empty() {
                is_empty = false;
                match if is_skipping { Ok(()) } else { parser.piece(piece) } {
                    Ok(()) => {}
                    Err(reason) => {
                        faults.push((index + 1, reason));
                        if faults.len() >= faults_max {
                            break 'text;
                        }
                        is_skipping = true;
                    }
                }
                parser.filled = index + 1;
            }
            if pieces.peek().is_some() {
                parser.open = None;
                is_skipping = false;
            }
        }
    }
    if is_empty {
        remarks.add(
            path,
            None,
            "defines no partition; the same as no file: all ports are full \
            members of the default partition",
        );
        return (PartitionConfig::default(), faults);
    }
    (parser.config, faults)
}

/// Collects P_Keys that definitions of the file contain, so that none of them is generated for
/// another. Text that only resembles a definition does no harm.
fn named_numbers(text: &str) -> Vec<u16> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    let headers = lines.flat_map(|line| line.split(';')).filter_map(|piece| piece.split_once(':'));
    let tokens = headers.map(|(header, _)| header.split(',').next().unwrap_or_default());
    let numbers = tokens.filter_map(|token| {
        let (name, value) = name_and_value(token);
        Some(number(value.unwrap_or(name))?.0 as u16 & 0x7FFF)
    });
    let mut numbers: Vec<u16> = numbers.filter(|&number| number != 0).collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

/// The definition whose properties are being read.
#[derive(Clone, Copy)]
struct Definition {
    pkey: PKey,
    flags: Flags,
    membership: Membership,
    first: bool,
    ipoib: bool,
}

struct Parser<'a> {
    config: PartitionConfig,
    /// Index of each partition in `config`.
    numbers: HashMap<PKey, usize>,
    names: HashMap<String, PKey>,
    /// Numbers that must not be generated, ascending.
    reserved: Vec<u16>,
    /// The last number generated.
    generated: u16,
    open: Option<Definition>,
    remarks: &'a mut Remarks,
    path: &'a Path,
    line: usize,
    /// Number of the last line with content, from 1.
    filled: usize,
}

impl Parser<'_> {
    fn remark(&mut self, text: impl AsRef<str>) {
        self.remarks.add(self.path, Some(self.line), text.as_ref());
    }

    /// Reports a flag that is ignored.
    fn pass_over(&mut self, text: impl AsRef<str>) {
        let text = format!("{}; ignored", text.as_ref());
        self.remarks.add_mistake(self.path, self.line, &text);
    }

    /// Parses the text between two semicolons of a line.
    fn piece(&mut self, piece: &str) -> Result<(), PartitionSyntax> {
        let Some(definition) = self.open else {
            let shown = || piece.trim().chars().take(60).collect::<String>();
            let (header, rest) =
                piece.split_once(':').ok_or_else(|| PartitionSyntax::NoDefinition(shown()))?;
            let definition = self.header(header)?;
            self.open = Some(definition);
            self.filled = self.line;
            return self.first_properties(rest);
        };
        self.properties(definition, piece)
    }

    /// Parses properties after the header. An example in the manual has flags there, with a colon
    /// of their own.
    fn first_properties(&mut self, text: &str) -> Result<(), PartitionSyntax> {
        let Some(mut definition) = self.open else { return Ok(()) };
        if let Some((flags, rest)) = text.split_once(':')
            && flags.trim_start().starts_with("defmember")
            && !flags.contains(',')
        {
            let (name, value) = name_and_value(flags);
            self.definition_flag(&mut definition, name, value);
            self.open = Some(definition);
            return self.properties(definition, rest);
        }
        self.properties(definition, text)
    }

    fn header(&mut self, header: &str) -> Result<Definition, PartitionSyntax> {
        let mut tokens = header.split(',');
        let (name, value) = name_and_value(tokens.next().unwrap_or_default());
        let (name, value) = match value {
            None if name.starts_with(|c: char| c.is_ascii_digit()) => ("", Some(name)),
            value => (name, value),
        };
        let mut definition = Definition {
            pkey: PKey::default(),
            flags: Flags::default(),
            membership: Membership::Limited,
            first: false,
            ipoib: false,
        };
        for token in tokens {
            let (name, value) = name_and_value(token);
            self.definition_flag(&mut definition, name, value);
        }
        definition.pkey = self.partition(name, value, definition.flags.sl)?;
        if definition.ipoib {
            // Scopes apply to groups of `mgid` lines; OpenSM makes this group link-local regardless
            // of them.
            let flags = Flags { scopes: 0, sl_is_own: false, ..definition.flags };
            self.group(&definition, flags, broadcast_mgid(definition.pkey));
        }
        Ok(definition)
    }

    /// Returns the partition of a definition; the first definition creates it.
    fn partition(
        &mut self,
        name: &str,
        value: Option<&str>,
        sl: Sl,
    ) -> Result<PKey, PartitionSyntax> {
        let mut base = 0;
        if let Some(text) = value {
            let not_a_number = || PartitionSyntax::PKey(text.to_owned());
            let (value, rest) = number(text).ok_or_else(not_a_number)?;
            if !rest.is_empty() {
                return Err(not_a_number());
            }
            base = value as u16 & 0x7FFF;
            if value > 0xFFFF {
                self.remark(format!(
                    "P_Key {text} has more than 16 bits; it is read as {base:#06x}"
                ));
            } else if base == 0 {
                self.remark(format!("P_Key {text} is invalid; another is generated"));
            }
        }
        if base == 0 {
            match self.names.get(name) {
                Some(known) => base = known.0,
                None => base = self.generate(name)?,
            }
        }
        let pkey = PKey(base);
        if let Some(&known) = self.numbers.get(&pkey) {
            let partition = &mut self.config.partitions[known];
            let before = std::mem::replace(&mut partition.sl, sl);
            let called = partition.name.clone();
            if !name.is_empty() && called != name {
                self.remark(format!(
                    "partition {pkey} already has the name '{called}'; '{name}' refers to the same \
                     partition"
                ));
            }
            if before != sl && before != Sl::default() {
                let (before, after) = (before.get(), sl.get());
                self.remark(format!(
                    "SL of partition '{called}' becomes {after}; an earlier definition has {before}"
                ));
            }
            return Ok(pkey);
        }
        let name = if name.is_empty() { format!("{:04x}", pkey.0) } else { name.to_owned() };
        // Definitions without a number refer to the first partition of that name.
        self.names.entry(name.clone()).or_insert(pkey);
        self.numbers.insert(pkey, self.config.partitions.len());
        self.config.partitions.push(Partition { pkey, name, sl });
        Ok(pkey)
    }

    /// The lowest number that no partition has or will have.
    fn generate(&mut self, name: &str) -> Result<u16, PartitionSyntax> {
        loop {
            self.generated += 1;
            if self.generated >= PKey::DEFAULT_LIMITED.0 {
                self.generated = PKey::DEFAULT_LIMITED.0 - 1;
                return Err(PartitionSyntax::NoPKeyLeft(name.to_owned()));
            }
            if self.reserved.binary_search(&self.generated).is_err() {
                return Ok(self.generated);
            }
        }
    }

    fn definition_flag(&mut self, definition: &mut Definition, name: &str, value: Option<&str>) {
        if name.is_empty() {
            self.remark("a flag is empty");
        } else if self.group_flag(&mut definition.flags, name, value) {
        } else if abbreviates(name, "ipoib") {
            definition.ipoib = true;
        } else if abbreviates(name, "defmember") {
            match value.and_then(membership) {
                Some(membership) => definition.membership = membership,
                None => self.pass_over("defmember must be full, limited or both"),
            }
        } else if name == "indx0" {
            definition.first = true;
        } else {
            self.pass_over(format!("unknown flag '{name}'"));
        }
    }

    fn properties(&mut self, definition: Definition, text: &str) -> Result<(), PartitionSyntax> {
        let mut rest = Some(text);
        while let Some(text) = rest {
            let remaining = text;
            let token;
            (token, rest) = match text.split_once(',') {
                Some((token, rest)) => (token, Some(rest)),
                None => (text, None),
            };
            let (name, value) = name_and_value(token);
            if name == "mgid" {
                return self.group_line(definition, value, rest);
            }
            self.port(definition, name, value).map_err(|reason| {
                match remaining.split_once(':') {
                    // A colon follows the start of a definition, or is part of an MGID.
                    Some((header, _)) if !header.contains("mgid") => PartitionSyntax::Unended {
                        header: header.trim().chars().take(60).collect(),
                        line: self.filled,
                    },
                    _ => reason,
                }
            })?;
        }
        Ok(())
    }

    fn port(
        &mut self,
        definition: Definition,
        name: &str,
        value: Option<&str>,
    ) -> Result<(), PartitionSyntax> {
        const KEYWORDS: [(&str, Ports); 5] = [
            ("ALL", Ports::All),
            ("ALL_CAS", Ports::Cas),
            ("ALL_SWITCHES", Ports::Switches),
            ("ALL_ROUTERS", Ports::Routers),
            ("SELF", Ports::Own),
        ];
        if abbreviates(name, "NONE") {
            return Ok(());
        }
        let keyword = KEYWORDS.iter().find(|(keyword, _)| abbreviates(name, keyword));
        let ports = match keyword {
            Some((keyword, ports)) => {
                if name != *keyword {
                    self.remark(format!("'{name}' is read as {keyword}"));
                }
                *ports
            }
            None => match number(name) {
                Some((guid, "")) if guid != 0 => Ports::Guid(Guid(guid)),
                _ => return Err(PartitionSyntax::Port(name.to_owned())),
            },
        };
        let membership = match value {
            None => definition.membership,
            Some(word) => membership(word).unwrap_or_else(|| {
                self.remark(format!(
                    "membership '{word}' is not full, limited or both; read as limited"
                ));
                Membership::Limited
            }),
        };
        if value == Some("") {
            self.remark(format!("'{name}=' has no membership; read as full"));
        }
        if let Ports::Guid(guid) = ports {
            self.config.guid_lines.entry(guid).or_insert(self.line);
        }
        self.config.rules.push(Rule {
            pkey: definition.pkey,
            ports,
            membership,
            first: definition.first,
        });
        Ok(())
    }
}

/// Parses a membership from its name or a prefix of it. As in OpenSM, the empty prefix means full.
fn membership(word: &str) -> Option<Membership> {
    [("full", Membership::Full), ("both", Membership::Both), ("limited", Membership::Limited)]
        .into_iter()
        .find(|(name, _)| abbreviates(word, name))
        .map(|(_, membership)| membership)
}
