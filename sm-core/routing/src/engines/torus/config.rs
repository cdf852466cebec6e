//! Parses `torus-2QoS.conf`: the shape of a torus or mesh, and switches from which to find it in
//! the fabric (torus-2QoS.conf(5)).
//!
//! ```text
//! torus 1 4 5                 # or mesh; a radix may end in t or m to differ from the rest
//! yp_link 0x200000 0x200005   # from this switch a link to that one leads up y
//! ym_link 0x200000 0x20000f   # both directions are needed where the radix is 4
//! zp_link 0x200000 0x200001
//! z_dateline -1               # moves the origin away from the seed's first switch
//! next_seed                   # another such list, should a switch of the first have failed
//! ```
//!
//! `port_order`, `portgroup_max_ports` and `max_changes` are parsed too. As in OpenSM, the rest of
//! a line is ignored. Input on which OpenSM fails only later is an error here, with its line
//! number.

use ib_mad::types::Guid;

use crate::HopMatrix;
use crate::error::AXIS_NAMES;
use crate::lanes::torus::{AXES, Direction, Place, Shape};
use crate::text::leading_number;

/// The checked contents of a `torus-2QoS.conf`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The torus or mesh to find.
    pub shape: Shape,
    /// The seeds to start from; at least one, tried in this order.
    pub seeds: Vec<Seed>,
    /// Ports of a switch in the order in which their hosts are assigned to parallel links; ports
    /// that are not listed follow in ascending order.
    pub port_order: Vec<u8>,
    /// How many parallel links, or hosts per switch, OpenSM allocates room for. This engine has no
    /// such limit.
    pub portgroup_max_ports: u32,
    /// How many changes of the torus to report.
    pub max_changes: u32,
}

/// A switch and its neighbours, which give the axes their directions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seed {
    /// The switch at the near end of all links of the seed.
    pub from: Guid,
    /// The neighbours down x, up x, down y and so on.
    pub to: [Option<Guid>; 2 * AXES],
    /// Distance of the origin, and so of the dateline, from the seed's first switch.
    pub datelines: [i16; AXES],
}

/// An invalid or incomplete line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{line}: {reason}")]
pub struct ConfigError {
    /// Line number, from 1.
    pub line: usize,
    /// The fault, and the expected form.
    pub reason: ConfigErrorKind,
}

/// Fault of a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum ConfigErrorKind {
    #[error("unknown keyword '{0}'; write one of {KEYWORDS}")]
    Keyword(String),
    #[error("'{0}' before the shape; begin with 'torus' or 'mesh' and three radices")]
    ShapeFirst(String),
    #[error("the shape is given twice; keep one line of 'torus' or 'mesh'")]
    ShapeTwice,
    #[error("no shape; write 'torus' or 'mesh' and three radices, such as 'torus 8 8 8'")]
    NoShape,
    #[error("'{keyword}' needs {what}")]
    Lacks { keyword: String, what: &'static str },
    #[error(
        "'{0}' is not a radix; write a number from 1 to {max}, then t for a ring or m for a line",
        max = Shape::RADIX_MAX
    )]
    Radix(String),
    #[error(
        "{0} switches are more than the {max} that can be routed",
        max = HopMatrix::SWITCHES_MAX
    )]
    TooMany(usize),
    #[error("'{0}' is not a switch GUID; write one such as 0x0002c90300000001")]
    Guid(String),
    #[error(
        "{axis} has radix 1, so no link leads along it; remove '{axis}p_link' and '{axis}m_link'"
    )]
    NoAxis { axis: char },
    #[error("all links of a seed start at one switch; write {first} first, not {other}")]
    OtherFrom { first: Guid, other: Guid },
    #[error("{guid} is in two places of this seed; each link must lead to a different switch")]
    TwoPlaces { guid: Guid },
    #[error("{first} and {other} are at the same place in this seed; keep one of them")]
    OnePlace { first: Guid, other: Guid },
    #[error(
        "'{value}' is not a position of the {axis} dateline; write a number from {min} to {max}"
    )]
    Dateline { value: String, axis: char, min: i16, max: i16 },
    #[error("no seed; write a link along each axis, such as 'xp_link 0x2000 0x2001'")]
    NoSeed,
    #[error("this seed has no link along {axis}; add '{axis}p_link' or '{axis}m_link'")]
    NoLink { axis: char },
    #[error(
        "{axis} is a ring of four switches, which needs both '{axis}p_link' and '{axis}m_link' in \
         each seed"
    )]
    RadixFour { axis: char },
    #[error(
        "'{axis}{sign}_link' leads out of the mesh: this seed is at {axis}={at}; move it by \
         '{axis}_dateline'"
    )]
    OutOfMesh { axis: char, sign: char, at: u8 },
}

const KEYWORDS: &str = "torus, mesh, xp_link, xm_link, yp_link, ym_link, zp_link, zm_link, \
    x_dateline, y_dateline, z_dateline, next_seed, portgroup_max_ports, port_order, max_changes";

impl Config {
    /// Parses the text of the file.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        Self::parse_and_report(text, &mut |_, _| ())
    }

    /// Parses the text, and calls `report` with the line number and a remark for each oddity that
    /// is parsed as OpenSM parses it.
    pub fn parse_and_report(
        text: &str,
        report: &mut dyn FnMut(usize, &str),
    ) -> Result<Self, ConfigError> {
        let mut parser = Parser::default();
        let mut last = 1;
        for (line, number) in text.lines().zip(1..) {
            last = number;
            let mut words = line.split_whitespace();
            let Some(keyword) = words.next().filter(|word| !word.starts_with('#')) else {
                continue;
            };
            parser.line = number;
            parser
                .take(keyword, &mut words)
                .map_err(|reason| ConfigError { line: number, reason })?;
            parser.odd.drain(..).for_each(|odd| report(number, &odd));
        }
        parser.finish(last)
    }
}

impl Seed {
    /// The place of the seed's first switch.
    pub(super) fn place(&self, shape: &Shape) -> Place {
        std::array::from_fn(|axis| {
            let radix = i16::from(shape.radix(axis));
            (-self.datelines[axis]).rem_euclid(radix) as u8
        })
    }

    /// The seed's switches and their places.
    pub(super) fn switches(&self, shape: &Shape) -> Vec<(Guid, Place)> {
        let from = self.place(shape);
        let to = Direction::all().filter_map(|direction| {
            Some((self.to[direction.index()]?, beside(shape, from, direction)?))
        });
        std::iter::once((self.from, from)).chain(to).collect()
    }

    fn check(&self, shape: &Shape) -> Result<(), ConfigErrorKind> {
        let place = self.place(shape);
        for (axis, name) in AXIS_NAMES.into_iter().enumerate() {
            let links = [false, true].map(|up| self.to[Direction::new(axis, up).index()]);
            match links {
                [Some(_), _] | [_, Some(_)] if shape.radix(axis) == 1 => {
                    return Err(ConfigErrorKind::NoAxis { axis: name });
                }
                [None, None] if shape.radix(axis) > 1 => {
                    return Err(ConfigErrorKind::NoLink { axis: name });
                }
                [None, _] | [_, None] if shape.radix(axis) == 4 && shape.wraps(axis) => {
                    return Err(ConfigErrorKind::RadixFour { axis: name });
                }
                _ => {}
            }
            for (up, sign) in [(false, 'm'), (true, 'p')] {
                let direction = Direction::new(axis, up);
                let is_out = beside(shape, place, direction).is_none();
                if self.to[direction.index()].is_some() && is_out {
                    return Err(ConfigErrorKind::OutOfMesh { axis: name, sign, at: place[axis] });
                }
            }
        }
        let switches = self.switches(shape);
        for (index, (guid, place)) in switches.iter().enumerate() {
            for (other, elsewhere) in &switches[index + 1..] {
                match (guid == other, place == elsewhere) {
                    (true, false) => return Err(ConfigErrorKind::TwoPlaces { guid: *guid }),
                    (false, true) => {
                        let (first, other) = (*guid, *other);
                        return Err(ConfigErrorKind::OnePlace { first, other });
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

/// The place next to another. If a ring or row has two switches, each is on both sides of the
/// other.
fn beside(shape: &Shape, place: Place, direction: Direction) -> Option<Place> {
    let back = || shape.step(place, direction.opposite());
    let is_pair = shape.radix(direction.axis()) == 2;
    shape.step(place, direction).or_else(|| if is_pair { back() } else { None })
}

/// The parser's state.
#[derive(Default)]
struct Parser {
    line: usize,
    /// Remarks on that line.
    odd: Vec<String>,
    shape: Option<Shape>,
    /// Each with the line where it begins.
    seeds: Vec<(usize, UnfinishedSeed)>,
    port_order: Vec<u8>,
    portgroup_max_ports: Option<u32>,
    max_changes: Option<u32>,
}

#[derive(Default)]
struct UnfinishedSeed {
    from: Option<Guid>,
    to: [Option<Guid>; 2 * AXES],
    datelines: [i16; AXES],
}

type Words<'a> = std::str::SplitWhitespace<'a>;

impl Parser {
    fn take(&mut self, keyword: &str, words: &mut Words<'_>) -> Result<(), ConfigErrorKind> {
        match keyword {
            "torus" | "mesh" if self.shape.is_some() => return Err(ConfigErrorKind::ShapeTwice),
            "torus" | "mesh" => self.shape = Some(shape(keyword, words, &mut self.odd)?),
            "next_seed" => self.seeds.push((self.line, UnfinishedSeed::default())),
            "portgroup_max_ports" => {
                self.portgroup_max_ports = count(keyword, words, &mut self.odd)?;
            }
            "max_changes" => self.max_changes = count(keyword, words, &mut self.odd)?,
            "port_order" => self.port_order = ports(words, &mut self.odd),
            _ => self.take_seed(keyword, words)?,
        }
        Ok(())
    }

    /// Parses a link or a dateline of the current seed.
    fn take_seed(&mut self, keyword: &str, words: &mut Words<'_>) -> Result<(), ConfigErrorKind> {
        let unknown = || ConfigErrorKind::Keyword(keyword.to_owned());
        let (head, tail) = keyword.split_once('_').ok_or_else(unknown)?;
        let mut letters = head.chars();
        let first = letters.next();
        let axis = AXIS_NAMES.iter().position(|&name| Some(name) == first);
        let axis = axis.ok_or_else(unknown)?;
        let direction = match (letters.as_str(), tail) {
            ("p", "link") => Some(Direction::new(axis, true)),
            ("m", "link") => Some(Direction::new(axis, false)),
            ("", "dateline") => None,
            _ => return Err(unknown()),
        };
        let name = AXIS_NAMES[axis];
        if self.seeds.is_empty() {
            self.seeds.push((self.line, UnfinishedSeed::default()));
        }
        let Some((_, seed)) = self.seeds.last_mut() else { return Ok(()) };
        let Some(direction) = direction else {
            // OpenSM accepts no dateline before the shape.
            let shape =
                self.shape.ok_or_else(|| ConfigErrorKind::ShapeFirst(keyword.to_owned()))?;
            seed.datelines[axis] =
                dateline(keyword, name, shape.radix(axis), words, &mut self.odd)?;
            return Ok(());
        };
        let mut guid = || guid(keyword, words, &mut self.odd);
        let (from, to) = (guid()?, guid()?);
        let first = *seed.from.get_or_insert(from);
        if first != from {
            return Err(ConfigErrorKind::OtherFrom { first, other: from });
        }
        if seed.to[direction.index()].replace(to).is_some_and(|before| before != to) {
            self.odd.push(format!(
                "'{keyword}' is given twice in this seed and the later one is used; is \
                 'next_seed' missing?"
            ));
        }
        Ok(())
    }

    fn finish(self, last: usize) -> Result<Config, ConfigError> {
        let fail = |line, reason| ConfigError { line, reason };
        let shape = self.shape.ok_or_else(|| fail(last, ConfigErrorKind::NoShape))?;
        let mut seeds = Vec::with_capacity(self.seeds.len());
        for (line, seed) in self.seeds {
            let UnfinishedSeed { from, to, datelines } = seed;
            let from = from.ok_or_else(|| fail(line, ConfigErrorKind::NoSeed))?;
            let seed = Seed { from, to, datelines };
            seed.check(&shape).map_err(|reason| fail(line, reason))?;
            seeds.push(seed);
        }
        if seeds.is_empty() {
            return Err(fail(last, ConfigErrorKind::NoSeed));
        }
        Ok(Config {
            shape,
            seeds,
            port_order: self.port_order,
            portgroup_max_ports: self.portgroup_max_ports.unwrap_or(PORTGROUP_MAX_PORTS),
            max_changes: self.max_changes.unwrap_or(MAX_CHANGES),
        })
    }
}

/// OpenSM's defaults (torus-2QoS.conf(5)).
const PORTGROUP_MAX_PORTS: u32 = 16;
const MAX_CHANGES: u32 = 32;

/// Returns the next word; the error states that `keyword` lacks `what`.
fn word<'a>(
    keyword: &str,
    what: &'static str,
    words: &mut Words<'a>,
) -> Result<&'a str, ConfigErrorKind> {
    let lacks = || ConfigErrorKind::Lacks { keyword: keyword.to_owned(), what };
    words.next().filter(|word| !word.starts_with('#')).ok_or_else(lacks)
}

fn shape(
    keyword: &str,
    words: &mut Words<'_>,
    odd: &mut Vec<String>,
) -> Result<Shape, ConfigErrorKind> {
    let (mut radix, mut wraps) = ([1; AXES], [keyword == "torus"; AXES]);
    for axis in 0..AXES {
        let word = word(keyword, "a radix for each of x, y and z (1 for an unused axis)", words)?;
        let (number, rest) = leading_number(word);
        let behind = match rest.chars().next() {
            Some(letter @ ('t' | 'T' | 'm' | 'M')) => {
                wraps[axis] = matches!(letter, 't' | 'T');
                &rest[1..]
            }
            _ => rest,
        };
        report_rest(word, behind, odd);
        let number = number.and_then(|number| u8::try_from(number).ok());
        radix[axis] = number
            .filter(|radix| (1..=Shape::RADIX_MAX).contains(radix))
            .ok_or_else(|| ConfigErrorKind::Radix(word.to_owned()))?;
    }
    let shape = Shape::new(radix, wraps);
    if shape.len() > HopMatrix::SWITCHES_MAX {
        return Err(ConfigErrorKind::TooMany(shape.len()));
    }
    Ok(shape)
}

fn guid(
    keyword: &str,
    words: &mut Words<'_>,
    odd: &mut Vec<String>,
) -> Result<Guid, ConfigErrorKind> {
    let word = word(keyword, "the GUIDs of two switches", words)?;
    number(word, odd).map(Guid).ok_or_else(|| ConfigErrorKind::Guid(word.to_owned()))
}

fn dateline(
    keyword: &str,
    axis: char,
    radix: u8,
    words: &mut Words<'_>,
    odd: &mut Vec<String>,
) -> Result<i16, ConfigErrorKind> {
    let word = word(keyword, "a position", words)?;
    let max = i16::from(radix) - 1;
    // A negative number is its two's complement.
    let position = number(word, odd).and_then(|number| i16::try_from(number as i64).ok());
    let position = position.filter(|position| position.abs() <= max);
    let value = || word.to_owned();
    position.ok_or_else(|| ConfigErrorKind::Dateline { value: value(), axis, min: -max, max })
}

fn count(
    keyword: &str,
    words: &mut Words<'_>,
    odd: &mut Vec<String>,
) -> Result<Option<u32>, ConfigErrorKind> {
    let word = word(keyword, "a number", words)?;
    let count = number(word, odd).and_then(|number| u32::try_from(number).ok());
    if count.is_none() {
        odd.push(format!("'{word}' is not a number for '{keyword}'; the default is used"));
    }
    Ok(count)
}

/// Parses port numbers up to the end of the line, each once.
fn ports(words: &mut Words<'_>, odd: &mut Vec<String>) -> Vec<u8> {
    let mut ports = Vec::new();
    for word in words.take_while(|word| !word.starts_with('#')) {
        let port = number(word, odd).and_then(|number| u8::try_from(number).ok());
        match port {
            Some(port) if !ports.contains(&port) => ports.push(port),
            Some(port) => odd.push(format!("port {port} is listed twice")),
            None => odd.push(format!("'{word}' is not a port and is ignored")),
        }
    }
    ports
}

/// Parses the number at the start of a word by C's rules, and remarks on text after it. `None` if
/// there is no number.
fn number(word: &str, odd: &mut Vec<String>) -> Option<u64> {
    let (number, rest) = leading_number(word);
    if rest.len() == word.len() {
        return None;
    }
    report_rest(word, rest, odd);
    number
}

fn report_rest(word: &str, rest: &str, odd: &mut Vec<String>) {
    if !rest.is_empty() {
        odd.push(format!("'{word}' ends in '{rest}', which is ignored"));
    }
}

#[cfg(test)]
mod tests;
