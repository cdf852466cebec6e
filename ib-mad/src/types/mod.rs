//! A separate type for each kind of number, so that a LID cannot be passed as a P_Key.
//!
//! Plain identifiers accept every bit pattern their width allows. Encoded quantities ([`Mtu`],
//! [`Rate`]) exist only for the codes that the specification defines.

mod address;
mod identifier;
mod quantity;

pub use address::{Gid, Guid, Lid, ParseGidError, ParseGuidError, SUBNET_PREFIX_DEFAULT};
pub use identifier::{PKey, PortNum, Qpn, Sl, Vl};
pub use quantity::{Lifetime, Mtu, Rate};
