//! Why a client could not attach, or a control request failed.

use std::io;

/// Why a client could not attach, or a control request failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IbsimError {
    /// No process is bound to the server's name.
    #[error(
        "no ibsim answers at socket '{socket}'; start `ibfabric serve NET` or `ibsim`, or set \
         --socket"
    )]
    NoServer {
        /// Base of its names.
        socket: String,
    },
    /// The server does not respond in time.
    #[error("ibsim at socket '{socket}' does not answer; is another of its clients stopped?")]
    NoAnswer {
        /// Base of its names.
        socket: String,
    },
    /// The base of the socket names is too long, or has a NUL byte.
    #[error("'{socket}' cannot be the name of a socket; at most 80 characters")]
    SocketName {
        /// The name as given.
        socket: String,
    },
    /// The node is not in the net file.
    #[error("node '{node}' is not in the net file")]
    UnknownNode {
        /// The node as given.
        node: String,
    },
    /// Another client is attached to receive the same requests.
    #[error("another SM/SA is attached to node {node}")]
    Taken {
        /// The node's identifier.
        node: String,
    },
    /// All of the server's client slots are in use.
    #[error("ibsim at socket '{socket}' has no room for another client (stock ibsim serves 10)")]
    NoSlot {
        /// Base of its names.
        socket: String,
    },
    /// An unexpected refusal.
    #[error("ibsim refused control request {0}")]
    Refused(u32),
    /// The system's error.
    #[error("ibsim socket: {0}")]
    Io(#[from] io::Error),
}

impl IbsimError {
    /// The error; if no server answers, with the origin of the socket name. `variable` is the value
    /// of IBSIM_SOCKNAME.
    pub fn with_origin(&self, variable: Option<&str>) -> String {
        let Self::NoServer { socket } = self else { return self.to_string() };
        let origin = match variable.filter(|name| !name.is_empty()) {
            None if socket == "sim" => "the default, since IBSIM_SOCKNAME is not set".to_owned(),
            None => "that of --socket; IBSIM_SOCKNAME is not set".to_owned(),
            Some(name) if name == socket => "from IBSIM_SOCKNAME".to_owned(),
            Some(name) => format!("that of --socket, though IBSIM_SOCKNAME is '{name}'"),
        };
        format!("{self}. The socket name is {origin}; it must equal the server's")
    }
}
