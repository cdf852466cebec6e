//! Socket addresses in the form of system calls.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// Room for an IPv4 or IPv6 address.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) union RawAddress {
    family: libc::sa_family_t,
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

impl RawAddress {
    /// Size in bytes.
    pub(super) const LEN: libc::socklen_t = size_of::<Self>() as libc::socklen_t;

    /// An unspecified address.
    pub(super) const fn empty() -> Self {
        // SAFETY: all-zero bytes are valid for every field; the family is AF_UNSPEC.
        unsafe { std::mem::zeroed() }
    }

    /// Converts `address`; returns it with its length.
    pub(super) fn new(address: SocketAddr) -> (Self, libc::socklen_t) {
        let mut raw = Self::empty();
        match address {
            SocketAddr::V4(address) => {
                raw.v4 = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: address.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from(*address.ip()).to_be() },
                    sin_zero: [0; 8],
                };
                (raw, size_of::<libc::sockaddr_in>() as libc::socklen_t)
            }
            SocketAddr::V6(address) => {
                raw.v6 = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: address.port().to_be(),
                    sin6_flowinfo: address.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
                    sin6_scope_id: address.scope_id(),
                };
                (raw, size_of::<libc::sockaddr_in6>() as libc::socklen_t)
            }
        }
    }

    /// The address at the start of `bytes`, as the kernel wrote it.
    pub(super) fn from_bytes(bytes: &[u8]) -> Self {
        let mut raw = Self::empty();
        let len = bytes.len().min(size_of::<Self>());
        // SAFETY: no more bytes than either has; any bytes are a valid address.
        unsafe { (&raw mut raw).cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), len) };
        raw
    }

    /// Length of the address, by its family.
    pub(super) fn len(&self) -> libc::socklen_t {
        // SAFETY: every field begins with the family.
        match libc::c_int::from(unsafe { self.family }) {
            libc::AF_INET => size_of::<libc::sockaddr_in>() as libc::socklen_t,
            _ => size_of::<libc::sockaddr_in6>() as libc::socklen_t,
        }
    }

    /// The address that the kernel wrote; `None` for other families.
    pub(super) fn get(&self) -> Option<SocketAddr> {
        // SAFETY: the union was zeroed and all its fields are integers, so any of them can be read.
        unsafe {
            match libc::c_int::from(self.family) {
                libc::AF_INET => {
                    let ip = Ipv4Addr::from(u32::from_be(self.v4.sin_addr.s_addr));
                    Some(SocketAddrV4::new(ip, u16::from_be(self.v4.sin_port)).into())
                }
                libc::AF_INET6 => {
                    let v6 = self.v6;
                    let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                    let port = u16::from_be(v6.sin6_port);
                    let (flow, scope) = (v6.sin6_flowinfo, v6.sin6_scope_id);
                    Some(SocketAddrV6::new(ip, port, flow, scope).into())
                }
                _ => None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_round_trip() {
        for text in ["127.0.0.1:4791", "[fe80::1]:1", "[::ffff:10.0.0.1]:65535"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(RawAddress::new(address).0.get(), Some(address));
        }
        assert_eq!(RawAddress::empty().get(), None);
    }
}
