//! Distributes the routes of the fullest layers over lanes that no layer needs.

use crate::Layers;

/// Number of lanes over which each layer's routes are distributed. Each lane's routes have a subset
/// of the layer's dependencies, so distributing them creates no cycle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shares {
    /// By layer: number of lanes.
    lanes: Vec<u8>,
}

impl Shares {
    /// Assigns one lane to each layer, and each further lane to the layer with the most `routes`
    /// per lane.
    pub(super) fn new(routes: &[u64], lanes: u8) -> Self {
        let mut shares = vec![1u8; routes.len()];
        for _ in routes.len()..lanes.into() {
            let crowd = |(layer, &lanes): (usize, &u8)| routes[layer] / u64::from(lanes);
            let most = shares.iter().enumerate().map(crowd).max();
            let Some(fullest) = shares.iter().enumerate().position(|of| Some(crowd(of)) == most)
            else {
                break;
            };
            shares[fullest] += 1;
        }
        Self { lanes: shares }
    }

    /// Distributes routes over lanes by their columns.
    pub(super) fn apply(&self, layers: &mut Layers, switches: usize) {
        self.distribute(layers, switches, |_, column| column);
    }

    /// Distributes pairs of switches over lanes, both directions to the same.
    pub(super) fn apply_to_pairs(&self, layers: &mut Layers, switches: usize) {
        self.distribute(layers, switches, |source, column| usize::from(source) + column);
    }

    /// Distributes routes by a number of each.
    fn distribute(
        &self,
        layers: &mut Layers,
        switches: usize,
        number: impl Fn(u16, usize) -> usize,
    ) {
        let firsts: Vec<u8> = self
            .lanes
            .iter()
            .scan(0, |next, &lanes| {
                let first = *next;
                *next += lanes;
                Some(first)
            })
            .collect();
        layers.count = self.lanes.iter().sum();
        for source in 0..switches as u16 {
            for (layer, column) in layers.row_mut(source).iter_mut().zip(0usize..) {
                let of = usize::from(*layer);
                *layer = firsts[of] + (number(source, column) % usize::from(self.lanes[of])) as u8;
            }
        }
    }
}
