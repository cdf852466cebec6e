//! How a subnet manager and the responders of its host share the file on which the SA class of the
//! manager's port is registered.
//!
//! The kernel frees a class when the last descriptor of its file is closed, so manager and
//! responder each keep one, and either may die. The manager listens at a Unix socket
//! ([`local`]); a responder keeps one connection to it:
//!
//! ```text
//! responder                          manager
//! Offer (its file, if it has one) ►
//!                                  ◄ File (the manager's) or NoFile: open it   if it had none
//! Ready: it has tables            ►
//!                                  ◄ Read: it reads from now on, nothing else does
//!                                  ◄ Rest: another process reads
//! ```
//!
//! The reader that was named last stays the reader while the connection, or the manager, is gone. A
//! responder that is to rest says Spare in place of Ready when it connects again: it becomes the
//! reader only if there is no other.
//!
//! Here are the messages only. The manager selects the reader.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::transport::local;

/// Name of the manager's socket in its state directory.
pub const SOCKET_NAME: &str = "sa-port";
/// Limit of a responder's name in bytes; a longer one is cut.
const NAME_LEN_MAX: usize = 100;
/// Limit of a message in bytes.
const MESSAGE_LEN_MAX: usize = 128;

/// A message from a responder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FromResponder {
    /// It can serve the port. Its descriptor comes with this message, if it has one.
    Offer {
        /// Its id in the feed of snapshots.
        id: u64,
        /// Its name, for operators.
        name: String,
    },
    /// The responder can answer queries.
    Ready,
    /// The responder can answer queries, but another one was named reader after it.
    Spare,
}

/// A message from the manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FromManager {
    /// The descriptor comes with this message.
    File,
    /// The manager has no descriptor: the responder is to open the file.
    NoFile,
    /// The responder is the reader.
    Read,
    /// Another process is the reader.
    Rest,
}

impl FromResponder {
    fn encode(&self) -> String {
        match self {
            Self::Offer { id, name } => {
                let end = (0..=name.len().min(NAME_LEN_MAX)).rev();
                let end = end.into_iter().find(|&end| name.is_char_boundary(end)).unwrap_or(0);
                format!("OFFER {id:x} {}", &name[..end])
            }
            Self::Ready => "READY".to_owned(),
            Self::Spare => "SPARE".to_owned(),
        }
    }

    fn decode(text: &str) -> Option<Self> {
        match text {
            "READY" => return Some(Self::Ready),
            "SPARE" => return Some(Self::Spare),
            _ => {}
        }
        let (id, name) = text.strip_prefix("OFFER ")?.split_once(' ')?;
        let is_printable = !name.chars().any(char::is_control);
        let id = u64::from_str_radix(id, 16).ok().filter(|_| is_printable)?;
        Some(Self::Offer { id, name: name.to_owned() })
    }
}

impl FromManager {
    const ALL: [(Self, &'static str); 4] = [
        (Self::File, "FILE"),
        (Self::NoFile, "NO FILE"),
        (Self::Read, "READ"),
        (Self::Rest, "REST"),
    ];

    fn encode(self) -> &'static str {
        Self::ALL.iter().find(|(message, _)| *message == self).map_or("", |(_, text)| text)
    }

    fn decode(text: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, other)| *other == text).map(|(message, _)| *message)
    }
}

/// Sends a message of a responder.
pub fn send_to_manager(
    connection: impl AsFd,
    message: &FromResponder,
    file: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    local::send(connection, message.encode().as_bytes(), file)
}

/// Sends a message of the manager.
pub fn send_to_responder(
    connection: impl AsFd,
    message: FromManager,
    file: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    local::send(connection, message.encode().as_bytes(), file)
}

/// Receives a message of a responder; `None` once it has closed the connection. What is not a
/// message fails with [`io::ErrorKind::InvalidData`].
pub fn receive_from_responder(
    connection: impl AsFd,
) -> io::Result<Option<(FromResponder, Option<OwnedFd>)>> {
    receive(connection, FromResponder::decode)
}

/// Receives a message of the manager, in the same way.
pub fn receive_from_manager(
    connection: impl AsFd,
) -> io::Result<Option<(FromManager, Option<OwnedFd>)>> {
    receive(connection, FromManager::decode)
}

fn receive<M>(
    connection: impl AsFd,
    decode: impl FnOnce(&str) -> Option<M>,
) -> io::Result<Option<(M, Option<OwnedFd>)>> {
    let mut buffer = [0; MESSAGE_LEN_MAX];
    let (len, file) = local::receive(connection, &mut buffer)?;
    if len == 0 {
        return Ok(None);
    }
    let message = std::str::from_utf8(&buffer[..len]).ok().and_then(decode);
    let message = message.ok_or(io::ErrorKind::InvalidData)?;
    Ok(Some((message, file)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_were_written() {
        let offer = FromResponder::Offer { id: 0xABC, name: "r 1".to_owned() };
        for message in [offer, FromResponder::Ready, FromResponder::Spare] {
            assert_eq!(FromResponder::decode(&message.encode()), Some(message));
        }
        for (message, _) in FromManager::ALL {
            assert_eq!(FromManager::decode(message.encode()), Some(message));
        }
    }

    #[test]
    fn a_long_name_is_cut_between_characters() {
        let offer = FromResponder::Offer { id: u64::MAX, name: "ä".repeat(200) };
        let text = offer.encode();
        assert!(text.len() <= MESSAGE_LEN_MAX, "{}", text.len());
        let Some(FromResponder::Offer { name, .. }) = FromResponder::decode(&text) else {
            panic!("{text}");
        };
        assert_eq!(name, "ä".repeat(NAME_LEN_MAX / 2));
    }

    #[test]
    fn other_text_is_refused() {
        for text in ["", "OFFER", "OFFER x name", "OFFER 1", "OFFER 1 a\nb", "READ", "ready"] {
            assert_eq!(FromResponder::decode(text), None, "{text}");
        }
        assert_eq!(FromManager::decode("READY"), None);
    }

    #[test]
    fn a_descriptor_comes_with_its_message() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(SOCKET_NAME);
        let listener = local::listen(&path, rustix::net::SocketFlags::empty()).unwrap();
        let responder = local::connect(&path).unwrap();
        let (manager, pid) = local::accept(&listener, rustix::net::SocketFlags::empty()).unwrap();
        assert_eq!(pid, std::process::id() as i32);
        let offer = FromResponder::Offer { id: 1, name: "r1".to_owned() };
        send_to_manager(&responder, &offer, None).unwrap();
        let (received, file) = receive_from_responder(&manager).unwrap().unwrap();
        assert!(received == offer && file.is_none());
        send_to_responder(&manager, FromManager::File, Some(listener.as_fd())).unwrap();
        let (received, file) = receive_from_manager(&responder).unwrap().unwrap();
        assert!(received == FromManager::File && file.is_some());
        drop(responder);
        assert!(receive_from_responder(&manager).unwrap().is_none());
    }
}
