//! A socket filter (classic BPF) that has the kernel drop datagrams of strangers before they take
//! room in the receive buffer. Of tokens it compares 32 bits: what it lets pass is judged by all of
//! them when it is received.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

/// Which datagrams a socket accepts: those of senders with one of these tokens, and those from one
/// of these UDP ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accepted {
    /// Tokens of senders, [`TOKEN_BITS`](super::TOKEN_BITS) bits each.
    pub tokens: Vec<u64>,
    /// Ports of senders, at any address.
    pub ports: Vec<u16>,
}

/// Maximum number of tokens and ports of a filter: the kernel keeps it, and the one that it
/// replaces, in 20 KiB (`net.core.optmem_max`).
pub const ACCEPTED_MAX: usize = 512;

/// Offsets in a datagram from the UDP header on: the source port, and the lower part of the token.
const SOURCE_PORT: u32 = 0;
const UDP_HEADER: u32 = 8;
const TOKEN_LOW: u32 = UDP_HEADER + 60;

/// Instructions: load a word or half a word, compare with a constant, return a constant.
const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const LOAD_HALF: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_ABS) as u16;
const IS_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

/// What a filter returns: how many bytes of the datagram are kept.
const ALL: u32 = u32::MAX;
const NONE: u32 = 0;

fn instruction(code: u16, operand: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt: 0, jf: 0, k: operand }
}

/// Accepts the datagram if the loaded value is `operand`, or else goes on.
fn accept_if(operand: u32) -> [libc::sock_filter; 2] {
    let skip = libc::sock_filter { code: IS_EQUAL, jt: 0, jf: 1, k: operand };
    [skip, instruction(RETURN, ALL)]
}

/// The program. A datagram that is too short for what it loads is dropped.
fn program(accepted: &Accepted) -> Vec<libc::sock_filter> {
    let mut program = vec![instruction(LOAD_HALF, SOURCE_PORT)];
    for &port in &accepted.ports {
        program.extend(accept_if(port.into()));
    }
    program.push(instruction(LOAD_WORD, TOKEN_LOW));
    for &token in &accepted.tokens {
        program.extend(accept_if(token as u32));
    }
    program.push(instruction(RETURN, NONE));
    program
}

/// Has the kernel drop all other datagrams from now on, or `None`: none.
pub(super) fn accept_only(socket: &UdpSocket, accepted: Option<&Accepted>) -> io::Result<()> {
    let Some(accepted) = accepted else {
        let removed =
            super::socket::set_option(socket, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, 0);
        return match removed {
            // There was none.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            result => result,
        };
    };
    if accepted.tokens.len() + accepted.ports.len() > ACCEPTED_MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut program = program(accepted);
    let len = u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let filter = libc::sock_fprog { len, filter: program.as_mut_ptr() };
    // SAFETY: `filter` names `len` instructions that outlive the call, which copies them.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const filter).cast(),
            size_of_val(&filter) as libc::socklen_t,
        )
    };
    super::socket::check(result)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::udp::{Engine, Udp, UdpOptions};
    use crate::transport::{Packet, Transport};

    fn udp(token: u64, engine: Engine) -> Udp {
        let listen = ([127, 0, 0, 1], 0).into();
        Udp::bind(&UdpOptions { token, engine, ..UdpOptions::new(listen) }).unwrap()
    }

    fn send(from: &mut Udp, to: &Udp, count: usize) {
        let mut packet = Packet::default();
        packet.carrier.peer = Some(to.local_addr().unwrap());
        from.send(&vec![packet; count]).unwrap();
    }

    /// Receives what is there, and the tokens of its senders.
    fn received(at: &mut Udp) -> Vec<u64> {
        let mut batch = vec![Packet::default(); 64];
        let mut tokens = Vec::new();
        // What was sent over loopback is there; io_uring may take a turn more.
        for _ in 0..3 {
            std::thread::sleep(std::time::Duration::from_millis(1));
            let got = at.receive(&mut batch).unwrap();
            tokens.extend(batch[..got].iter().map(|packet| packet.carrier.token));
        }
        tokens
    }

    /// Regression: datagrams of any local user took the room of those of responders.
    #[test]
    fn datagrams_without_a_known_token_do_not_reach_the_buffer() {
        const KNOWN: [u64; 3] = [0xABCD_1122_3344, 0x7788_1122_3343, 0x0001_0000_0001];
        for engine in [Engine::Mmsg, Engine::Auto] {
            let mut at = udp(0, engine);
            let mut senders = [KNOWN[0], KNOWN[1], KNOWN[2], 0, 0xABCD_1122_3345, 0xABCD_1122_3346]
                .map(|token| udp(token, Engine::Mmsg));
            let accepted = Accepted { tokens: KNOWN.to_vec(), ports: Vec::new() };
            at.accept_only(Some(&accepted)).unwrap();
            senders.iter_mut().for_each(|sender| send(sender, &at, 2));
            let expected: Vec<u64> = KNOWN.iter().flat_map(|&token| [token; 2]).collect();
            assert_eq!(received(&mut at), expected, "{engine}");
            assert!(at.overflowed() > 0, "the kernel counts them");
            // One without a token is known by its port.
            let ports = vec![9, senders[3].local_addr().unwrap().port()];
            at.accept_only(Some(&Accepted { ports, ..accepted.clone() })).unwrap();
            send(&mut senders[3], &at, 1);
            send(&mut senders[4], &at, 1);
            assert_eq!(received(&mut at), [0], "{engine}");
            at.accept_only(Some(&Accepted::default())).unwrap();
            send(&mut senders[0], &at, 1);
            assert_eq!(received(&mut at), [], "{engine}");
            at.accept_only(None).unwrap();
            at.accept_only(None).unwrap();
            send(&mut senders[4], &at, 1);
            assert_eq!(received(&mut at), [0xABCD_1122_3345], "{engine}");
        }
    }

    #[test]
    fn the_largest_filter_is_accepted_and_a_larger_one_is_not() {
        let mut at = udp(0, Engine::Mmsg);
        let tokens = |count: usize| Accepted { tokens: vec![7; count], ports: Vec::new() };
        (0..2).for_each(|_| at.accept_only(Some(&tokens(ACCEPTED_MAX))).unwrap());
        at.accept_only(Some(&tokens(ACCEPTED_MAX + 1))).unwrap_err();
    }
}
