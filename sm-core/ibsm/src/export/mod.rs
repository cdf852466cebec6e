//! The published topology in forms that other programs read, without a sweep and without root:
//! `ibnetdiscover`'s output, Slurm's `topology.conf` (tree and block), and topograph's graph.
//!
//! - `net`: the net file. `tiers`: hosts and the switches above them, as a tree. `hostlist`: lists
//!   of names as Slurm writes them. `forms`: texts made of a tree.

mod forms;
pub(crate) mod hostlist;
mod net;
mod tiers;

use std::str::FromStr;

use sa_proto::snapshot::FabricPlane;

pub use net::net_of;
use tiers::Tiers;

/// A form of the topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As `ibnetdiscover` writes it.
    Ibnetdiscover,
    /// `topology.conf` of Slurm's plugin `topology/tree`.
    Slurm,
    /// `topology.conf` of Slurm's plugin `topology/block`: a block per leaf switch.
    SlurmBlock,
    /// The graph of NVIDIA's topograph, as JSON.
    Topograph,
}

impl Form {
    /// Its name in requests.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ibnetdiscover => "ibnetdiscover",
            Self::Slurm => "slurm",
            Self::SlurmBlock => "slurm-block",
            Self::Topograph => "topograph",
        }
    }
}

impl FromStr for Form {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let all = [Self::Ibnetdiscover, Self::Slurm, Self::SlurmBlock, Self::Topograph];
        all.into_iter().find(|form| form.name() == name).ok_or_else(|| {
            format!("no form '{name}': ibnetdiscover, slurm, slurm-block or topograph")
        })
    }
}

/// The text of a published fabric. With `rails`, hosts count at those of their adapters only whose
/// NodeDescription has one of these as its second word, such as `HCA-1` or `mlx5_0`.
pub fn render(plane: &FabricPlane, form: Form, rails: &[String]) -> String {
    match form {
        Form::Ibnetdiscover => net_of(plane).to_string(),
        Form::Slurm => forms::slurm(&Tiers::of(plane, rails)),
        Form::SlurmBlock => forms::slurm_block(&Tiers::of(plane, rails)),
        Form::Topograph => forms::topograph(&Tiers::of(plane, rails)),
    }
}
