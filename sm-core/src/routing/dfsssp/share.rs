//! Lanes that no layer needs share the routes of the fullest layers.

use super::super::Layers;

/// How many lanes each layer's routes are dealt to. Some of a layer's routes have only
/// dependencies that all of them have together, so that no cycle comes of dealing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shares {
    /// By layer.
    lanes: Vec<u8>,
}

impl Shares {
    /// Gives one lane to each layer, and each further one to the layer with the most `routes` a
    /// lane.
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

    /// Deals routes to lanes by their columns.
    pub(super) fn apply(&self, layers: &mut Layers, switches: usize) {
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
                *layer = firsts[of] + (column % usize::from(self.lanes[of])) as u8;
            }
        }
    }
}
