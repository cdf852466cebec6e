//! The manager from outside: in virtual time on a simulated fabric (`common`), and as a program beside
//! stock ones (`ibsim`). One binary, since each takes seconds to link.

mod alias_guids;
mod babbling;
mod common;
mod compaction;
mod dumps;
mod faults;
mod golden_multicast;
mod golden_registry;
mod handover;
mod ibsim;
mod interop_config;
mod interop_dump;
mod interop_files;
mod interop_follow;
mod interop_ibsim;
mod interop_opensm;
mod interop_steering;
mod lanes;
mod loss;
mod m_keys;
mod malformed;
mod multicast;
mod multicast_moves;
mod origin;
mod partitions;
mod policy;
mod qos_tables;
mod reach;
mod settings;
mod sharding;
mod steering;
mod survival;
mod sweep;
mod takeover;
mod unrest;
