//! HyperX (Ahn et al. 2009): switches at the points of a grid, each linked to all others of its row
//! in every dimension.

use super::GenerateError;
use super::grid::{self, add_hosts};
use super::plan::{Plan, radix_for};

/// Parameters of a HyperX. The first ports of a switch lead to the others of its row in dimension
/// 0, by their position, the next to those in dimension 1, and so on; hosts use the ports after
/// these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HyperX {
    /// Switches in each dimension.
    pub dims: Vec<u16>,
    /// Hosts per switch.
    pub hosts_per_switch: u8,
    /// Ports per switch; the smallest common number that suffices if `None`.
    pub radix: Option<u8>,
}

impl HyperX {
    pub(super) fn plan(&self) -> Result<Plan, GenerateError> {
        let (dims, switches) = grid::sizes(&self.dims)?;
        let cables: usize = dims.iter().map(|dim| dim - 1).sum();
        let radix = radix_for(cables + usize::from(self.hosts_per_switch), self.radix)?;
        let names = (0..switches).map(|index| grid::name(index, &dims)).collect();
        let mut plan = Plan::new(names, radix);
        for switch in 0..switches {
            let (mut stride, mut first) = (1, 1);
            for &dim in &dims {
                let place = switch / stride % dim;
                for peer in place + 1..dim {
                    let across = switch + (peer - place) * stride;
                    let [port, back] = [peer - 1, place].map(|at| (first + at) as u8);
                    plan.links.push(((switch, port), (across, back)));
                }
                (stride, first) = (stride * dim, first + dim - 1);
            }
            add_hosts(&mut plan, switch, cables, self.hosts_per_switch);
        }
        Ok(plan)
    }
}
