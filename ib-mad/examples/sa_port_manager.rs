//! What a subnet manager does with the file of SA requests at its port, and nothing else: opens it,
//! keeps it, and passes it to responders (`ibsa --at-sm-port`). `scripts/kernel-lab` uses it in
//! place of `ibsm`, which needs QP0. While no responder reads, requests wait.
//!
//! usage: sa_port_manager DEVICE SOCKET

#![allow(clippy::print_stdout, reason = "results are printed")]

use std::collections::VecDeque;
use std::error::Error;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use ib_mad::transport::umad::sharing::{self, FromManager, FromResponder};
use ib_mad::transport::umad::{Umad, UmadError, UmadOptions, UmadPort};
use ib_mad::transport::{Interest, Transport, local, wait};
use rustix::net::SocketFlags;

/// Limit of connections: the oldest one is closed.
const CONNECTIONS_MAX: usize = 4;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [device, socket] = &arguments[..] else {
        return Err("usage: sa_port_manager DEVICE SOCKET".into());
    };
    let options = UmadOptions::sa_responder(UmadPort::find(Some(device), None)?);
    let mut file = match Umad::open(&options) {
        Err(UmadError::Taken { .. }) => None,
        opened => Some(opened?),
    };
    let listener = local::listen(Path::new(socket), SocketFlags::empty())?;
    println!("listening; the file is {}", if file.is_some() { "open" } else { "another's" });
    let mut connections: VecDeque<OwnedFd> = VecDeque::new();
    loop {
        let descriptors = connections.iter().chain([&listener]);
        let mut interests: Vec<Interest<'_>> =
            descriptors.map(|descriptor| Interest::read(descriptor.as_fd())).collect();
        wait(&mut interests, None)?;
        let ready = interests.iter().position(Interest::is_readable);
        let Some(at) = ready else { continue };
        if at == connections.len() {
            connections.truncate(CONNECTIONS_MAX - 1);
            connections.push_front(local::accept(&listener, SocketFlags::empty())?.0);
            continue;
        }
        let connection = &connections[at];
        match sharing::receive_from_responder(connection) {
            Ok(Some((FromResponder::Offer { .. }, Some(offered)))) => {
                file = Some(Umad::adopt(offered, &options)?);
                println!("the file is a responder's");
            }
            Ok(Some((FromResponder::Offer { .. }, None))) => {
                let ours = file.as_ref().and_then(Transport::descriptor);
                let message = if ours.is_some() { FromManager::File } else { FromManager::NoFile };
                sharing::send_to_responder(connection, message, ours)?;
            }
            Ok(Some((FromResponder::Ready | FromResponder::Spare, _))) => {
                sharing::send_to_responder(connection, FromManager::Read, None)?;
                println!("a responder reads now");
            }
            Ok(None) | Err(_) => {
                connections.remove(at);
            }
        }
    }
}
