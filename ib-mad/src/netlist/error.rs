//! Errors in a net file: location, cause and correction.

use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::types::Guid;

use super::{NODE_ID_LEN_MAX, NODES_MAX, PORTS_MAX, PortRef};

/// Why two ports cannot be connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// The node or port does not exist, or is a switch's port 0.
    #[error("node {} has no port {} that takes a cable", .port.node, .port.port)]
    NoSuchPort {
        /// The missing port.
        port: PortRef,
    },
    /// The port has another cable already.
    #[error(
        "port {} of node {} is cabled to port {} of node {}",
        .port.port, .port.node, .peer.port, .peer.node
    )]
    InUse {
        /// The occupied port.
        port: PortRef,
        /// The far end of its cable.
        peer: PortRef,
    },
    /// Both ends are the same port.
    #[error("port {} of node {} cannot be cabled to itself", .port.port, .port.node)]
    ToItself {
        /// The port.
        port: PortRef,
    },
}

/// A net file that cannot be read: location and cause.
#[derive(Debug, thiserror::Error)]
#[error("{}{problem}", self.place())]
pub struct NetError {
    /// The file, as named by the caller.
    pub file: String,
    /// Line number from 1; 0 for the file as a whole.
    pub line: usize,
    /// The error.
    pub problem: Problem,
}

impl NetError {
    fn place(&self) -> String {
        match (self.line, &self.problem) {
            // The message names the file itself.
            (0, Problem::Io { .. }) => String::new(),
            (0, _) => format!("{}: ", self.file),
            (line, _) => format!("{}:{line}: ", self.file),
        }
    }
}

/// Formats a port with its node's id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortName {
    /// The node's id.
    pub node: String,
    /// The port's number.
    pub port: u8,
}

impl fmt::Display for PortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "port {} of \"{}\"", self.port, self.node)
    }
}

/// An error in a line of a net file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum Problem {
    #[error("cannot read {path}: {error}", path = path.display())]
    Io { path: PathBuf, error: io::Error },
    #[error("the file has more than {limit} bytes")]
    TooLarge { limit: u64 },
    #[error(
        "'{line}' is neither a node (Switch, Ca, Hca, Rt), a port ([1] \"peer\"[2]), a setting \
         (switchguid=, caguid=, rtguid=, vendid=, devid=, sysimgguid=, width=, speed=, extspeed=, \
         module=), 'include', 'do' nor a comment (#)"
    )]
    UnknownLine { line: String },
    #[error("a node line has the form {keyword} 36 \"id\" # \"description\"; {missing} is missing")]
    NodeLine { keyword: &'static str, missing: &'static str },
    #[error("a node has 1 to {PORTS_MAX} ports, not {text}")]
    PortCount { text: String },
    #[error("node id \"{id}\" may have 1 to {NODE_ID_LEN_MAX} bytes and no '#' or '@'")]
    NodeId { id: String },
    #[error("node \"{id}\" was already described in line {first}; ids must be unique")]
    DuplicateId { id: String, first: usize },
    #[error(
        "node GUID {guid} of \"{id}\" already belongs to \"{other}\"; set another with \
         switchguid=, caguid= or rtguid= before the node"
    )]
    DuplicateGuid { guid: Guid, id: String, other: String },
    #[error("more than {NODES_MAX} nodes")]
    TooManyNodes,
    #[error("a port line must follow its node's line, with no blank line between them")]
    PortWithoutNode,
    #[error("a port line has the form [1] \"peer\"[2]; {missing} is missing")]
    PortLine { missing: &'static str },
    #[error("\"{node}\" has ports 1 to {count}, not {number}")]
    PortNumber { node: String, count: u8, number: String },
    #[error("no node is called \"{id}\"")]
    NoSuchNode { id: String },
    #[error("no alias is called \"{alias}\"; aliases are given by lines like: @[1] \"alias\"")]
    NoSuchAlias { alias: String },
    #[error("alias \"{alias}\" already names port {port} of \"{node}\"")]
    DuplicateAlias { alias: String, node: String, port: u8 },
    #[error(
        "this cables {} to {}, but line {first} has {} cabled to {}; a port takes one cable",
        .cable[0], .cable[1], .taken[0], .taken[1]
    )]
    Contradiction { cable: Box<[PortName; 2]>, first: usize, taken: Box<[PortName; 2]> },
    #[error("{port} cannot be cabled to itself")]
    ToItself { port: PortName },
    #[error("a setting has the form {key}=0x2c9; '{value}' is not a number of at most {bits} bits")]
    Number { key: String, value: String, bits: u32 },
    #[error("'{value}' is not a GUID: write hexadecimal digits, such as {key}=0x2c90300000001")]
    NotAGuid { key: String, value: String },
    #[error(
        "'{value}' is not a {key} mask; widths: 1x 1, 2x 16, 4x 2, 8x 4, 12x 8; speeds: SDR 1, \
         DDR 2, QDR 4; extended speeds: FDR 1, EDR 2, HDR 4, NDR 8, XDR 16; add up those that \
         are enabled"
    )]
    Mask { key: &'static str, value: String },
    #[error("'{text}' is not a link width and speed; write, for example, 4xHDR")]
    Rate { text: String },
    #[error("'{text}' is not a valid {what}: at most {max}")]
    Hint { what: &'static str, text: String, max: u16 },
    #[error("write include \"file\", with the file's name in double quotes")]
    IncludeLine,
    #[error(
        "files may include each other {limit} levels deep; does {path} include itself?",
        path = path.display()
    )]
    IncludeDepth { path: PathBuf, limit: usize },
    #[error("cannot include {path}: this net was not read from a file", path = path.display())]
    IncludeWithoutFile { path: PathBuf },
    #[error("a module prefix has at most 20 bytes, in double quotes: module = \"name\"")]
    Module,
}
