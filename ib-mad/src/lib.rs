//! InfiniBand management datagrams (MADs): wire formats, protocols as state machines, and the
//! sockets that carry them.
//!
//! - [`types`]: LIDs, GUIDs, GIDs, P_Keys and the encoded quantities (MTU, rate, lifetime).
//! - [`wire`]: views that borrow bytes, and checked owned forms, of MADs, SM attributes and SA
//!   records. [`layout!`] declares further ones, a vendor's for example.
//! - [`rmpp`], [`transaction`]: state machines; they never send, sleep or read a clock.
//! - [`packet`]: a MAD and its addressing.
//! - [`dissect`]: one MAD as readable text.
//! - [`text`]: names that the fabric reports, safe to show.
//! - [`netlist`] (feature `netlist`): subnets as described by files of `ibsim` and output of
//!   `ibnetdiscover`.
//! - [`transport`] (feature `transport`): sockets behind one batch interface.
//!
//! Both features are on by default; without them there are no dependencies on the operating
//! system. Layouts follow the InfiniBand Architecture Specification (IBA), volume 1, release 1.5;
//! each type cites its section.
//!
//! # Examples
//!
//! A request for the path to a GID, as an SA client sends it:
//!
//! ```
//! use ib_mad::types::Gid;
//! use ib_mad::wire::mad::Method;
//! use ib_mad::wire::record::PathRecord;
//! use ib_mad::wire::record::path::component;
//! use ib_mad::wire::sa::{SaMad, attribute};
//!
//! let mut bytes = [0; 256];
//! let mut mad = SaMad::new(&mut bytes);
//! let mask = component::SGID | component::DGID | component::NUMB_PATH;
//! mad.write_request(Method::GET, attribute::PATH_RECORD, 0x2A, mask);
//! PathRecord::of_mut(mad.data_mut())
//!     .set_sgid("fe80::2c9:300:0:1".parse()?)
//!     .set_dgid("fe80::2c9:300:0:2".parse()?)
//!     .set_numb_path(1);
//!
//! assert_eq!(
//!     ib_mad::dissect::summary(&bytes),
//!     "SubnAdm Get PathRecord tid 0x2a by DGID|SGID|NumbPath"
//! );
//! # Ok::<(), ib_mad::types::ParseGidError>(())
//! ```
//!
//! Reading a received MAD:
//!
//! ```
//! use ib_mad::wire::DecodeError;
//! use ib_mad::wire::mad::{MgmtClass, Status};
//! use ib_mad::wire::record::{PathRecord, PathRecordRepr};
//! use ib_mad::wire::sa::{SaMad, attribute};
//!
//! /// The path in an answer; `None` if the SA reports an error.
//! fn path(bytes: &[u8; 256]) -> Option<Result<PathRecordRepr, DecodeError>> {
//!     let mad = SaMad::new(bytes);
//!     let header = mad.header();
//!     let is_path = header.mgmt_class() == MgmtClass::SUBN_ADM
//!         && header.attribute_id() == attribute::PATH_RECORD
//!         && header.method().is_response();
//!     // Checks every field: the specification reserves some codes of MTU and rate.
//!     (is_path && header.status() == Status::OK)
//!         .then(|| PathRecordRepr::parse(&PathRecord::of(mad.data())))
//! }
//! # assert!(path(&[0; 256]).is_none());
//! ```

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

pub mod dissect;
#[cfg(feature = "netlist")]
// Reads included files, and searches for files by pattern.
#[allow(clippy::disallowed_methods, clippy::disallowed_types)]
pub mod netlist;
pub mod packet;
pub mod rmpp;
pub mod text;
pub mod transaction;
#[cfg(feature = "transport")]
#[allow(clippy::disallowed_methods, clippy::disallowed_types)]
pub mod transport;
pub mod types;
pub mod wire;

/// Items that [`layout!`] uses in other crates. Not part of the public interface.
#[doc(hidden)]
pub mod __private {
    pub use pastey::paste;
}

#[cfg(all(doctest, feature = "transport"))]
#[doc = include_str!("../README.md")]
struct Readme;
