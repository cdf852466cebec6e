//! Positions of switches on the map. Equal fabrics give equal maps, regardless of the order of
//! discovery.
//!
//! Fat trees are drawn in rows: leaf switches, which have the hosts, at the bottom, the others
//! above; switches connected without the rows above are placed together. Any other fabric is drawn
//! in rows by distance from its first switch. The layout is computed directly, without simulation,
//! in time proportional to the fabric.

use std::cmp::Ordering;
use std::collections::VecDeque;

/// Limit of rows of a tree; a fabric with more is not drawn as a tree.
const TREE_RANKS_MAX: u16 = 8;
/// Percentage of the links between switches that must lead exactly one row up in a tree.
const UPWARD_PERCENT: usize = 95;
/// Width of the gap between groups of leaf switches, and its increase per level.
const GAP: f32 = 0.6;

/// Input of the layout: switches by number, in display order.
#[derive(Clone, Debug, Default)]
pub(super) struct Input {
    /// Number of hosts of each switch.
    pub(super) hosts: Vec<u32>,
    /// Links between switches.
    pub(super) links: Vec<(u32, u32)>,
}

/// Kind of layout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Kind {
    /// As a fat tree.
    Tree,
    /// By distance from the first switch.
    #[default]
    Distance,
}

/// Positions of the switches.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Layout {
    pub(super) kind: Kind,
    /// Horizontal centre of each switch, in switch widths.
    pub(super) x: Vec<f32>,
    /// By switch: row, 0 at the top.
    pub(super) row: Vec<u16>,
    /// Number of rows.
    pub(super) rows: u16,
    /// Total width.
    pub(super) width: f32,
}

/// Computes the position of each switch.
pub(super) fn layout(input: &Input) -> Layout {
    let mut neighbours = vec![Vec::new(); input.hosts.len()];
    for &(a, b) in input.links.iter().filter(|(a, b)| a != b) {
        neighbours[a as usize].push(b);
        neighbours[b as usize].push(a);
    }
    for list in &mut neighbours {
        list.sort_unstable();
        list.dedup();
    }
    match tree_ranks(input, &neighbours) {
        Some(ranks) => tree(&neighbours, &ranks),
        None => by_distance(&neighbours),
    }
}

/// Distance of each switch from the nearest leaf switch, if the fabric is a tree by these ranks.
fn tree_ranks(input: &Input, neighbours: &[Vec<u32>]) -> Option<Vec<u16>> {
    // A switch at the top of a tree with a host or two, such as a subnet manager, is not a leaf.
    let most = input.hosts.iter().copied().max().filter(|&most| most > 0)?;
    let leaves = (0..neighbours.len() as u32).filter(|&at| input.hosts[at as usize] * 4 > most);
    let ranks = distances(neighbours, leaves);
    let top = *ranks.iter().max()?;
    if top == 0 || top > TREE_RANKS_MAX {
        return None;
    }
    let upward = |&&(a, b): &&(u32, u32)| ranks[a as usize].abs_diff(ranks[b as usize]) == 1;
    let upwards = input.links.iter().filter(upward).count();
    (upwards * 100 >= input.links.len() * UPWARD_PERCENT).then_some(ranks)
}

/// Distance from the nearest of `from`; unreachable switches count as the nearest.
fn distances(neighbours: &[Vec<u32>], from: impl Iterator<Item = u32>) -> Vec<u16> {
    let mut distances = vec![u16::MAX; neighbours.len()];
    let mut queue: VecDeque<u32> = from.collect();
    queue.iter().for_each(|&at| distances[at as usize] = 0);
    while let Some(at) = queue.pop_front() {
        for &next in &neighbours[at as usize] {
            if distances[next as usize] == u16::MAX {
                distances[next as usize] = distances[at as usize].saturating_add(1);
                queue.push_back(next);
            }
        }
    }
    distances.iter_mut().filter(|distance| **distance == u16::MAX).for_each(|far| *far = 0);
    distances
}

/// Layout of a tree: switches connected below a row are placed together below it.
fn tree(neighbours: &[Vec<u32>], ranks: &[u16]) -> Layout {
    let top = ranks.iter().copied().max().unwrap_or(0);
    let mut builder =
        Tree { neighbours, ranks, x: vec![0.0; ranks.len()], seen: vec![u16::MAX; ranks.len()] };
    let width = builder.place((0..ranks.len() as u32).collect(), top, 0.0);
    let row = ranks.iter().map(|rank| top - rank).collect();
    Layout { kind: Kind::Tree, x: builder.x, row, rows: top + 1, width }
}

struct Tree<'a> {
    neighbours: &'a [Vec<u32>],
    ranks: &'a [u16],
    x: Vec<f32>,
    /// The lowest rank below which a switch was assigned to a component.
    seen: Vec<u16>,
}

impl Tree<'_> {
    /// Places `members`, of rank `rank` or lower, from `left` on. Returns their width.
    fn place(&mut self, members: Vec<u32>, rank: u16, left: f32) -> f32 {
        let (row, below): (Vec<u32>, Vec<u32>) =
            members.into_iter().partition(|&at| self.ranks[at as usize] == rank);
        let mut width = 0.0;
        if rank > 0 {
            let gap = GAP * f32::from(rank - 1);
            for (at, component) in self.components(&below, rank).into_iter().enumerate() {
                width += if at == 0 { 0.0 } else { gap };
                width += self.place(component, rank - 1, left + width);
            }
        }
        width = width.max(row.len() as f32);
        let step = width / row.len().max(1) as f32;
        for (at, switch) in row.into_iter().enumerate() {
            self.x[switch as usize] = left + (at as f32 + 0.5) * step;
        }
        width
    }

    /// Connected components of `members`, all below `rank`, without the switches above.
    fn components(&mut self, members: &[u32], rank: u16) -> Vec<Vec<u32>> {
        let mut components = Vec::new();
        for &first in members {
            if self.seen[first as usize] <= rank {
                continue;
            }
            let mut component = vec![first];
            self.seen[first as usize] = rank;
            let mut at = 0;
            while let Some(&member) = component.get(at) {
                at += 1;
                for &next in &self.neighbours[member as usize] {
                    if self.ranks[next as usize] < rank && self.seen[next as usize] > rank {
                        self.seen[next as usize] = rank;
                        component.push(next);
                    }
                }
            }
            component.sort_unstable();
            components.push(component);
        }
        components
    }
}

/// Rows by distance from the first switch, each ordered by the positions in the row before.
fn by_distance(neighbours: &[Vec<u32>]) -> Layout {
    let mut layout = Layout {
        x: vec![0.0; neighbours.len()],
        row: vec![u16::MAX; neighbours.len()],
        ..Layout::default()
    };
    for first in 0..neighbours.len() as u32 {
        if layout.row[first as usize] != u16::MAX {
            continue;
        }
        let mut rows = vec![vec![first]];
        layout.row[first as usize] = 0;
        while let Some(last) = rows.last().filter(|row| !row.is_empty()) {
            let depth = rows.len() as u16;
            let mut next: Vec<u32> =
                last.iter().flat_map(|&at| &neighbours[at as usize]).copied().collect();
            next.retain(|&at| layout.row[at as usize] == u16::MAX);
            next.sort_unstable();
            next.dedup();
            next.iter().for_each(|&at| layout.row[at as usize] = depth);
            rows.push(next);
        }
        rows.pop();
        let gap = if layout.width > 0.0 { 2.0 } else { 0.0 };
        let left = layout.width + gap;
        let widest = rows.iter().map(Vec::len).max().unwrap_or(0) as f32;
        for row in &mut rows {
            sort_by_parents(row, neighbours, &layout);
            let step = widest / row.len() as f32;
            for (at, &switch) in row.iter().enumerate() {
                layout.x[switch as usize] = left + (at as f32 + 0.5) * step;
            }
        }
        layout.rows = layout.rows.max(rows.len() as u16);
        layout.width = left + widest;
    }
    layout
}

/// Sorts a row by the mean position of each switch's neighbours in the row before.
fn sort_by_parents(row: &mut [u32], neighbours: &[Vec<u32>], layout: &Layout) {
    let mean = |at: u32| {
        let own = layout.row[at as usize];
        let parents = neighbours[at as usize].iter().copied();
        let parents = parents.filter(|&other| layout.row[other as usize] + 1 == own);
        let (sum, count) =
            parents.fold((0.0, 0.0), |(sum, n), other| (sum + layout.x[other as usize], n + 1.0));
        if count > 0.0 { sum / count } else { 0.0 }
    };
    let mut keyed: Vec<(f32, u32)> = row.iter().map(|&at| (mean(at), at)).collect();
    keyed.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    row.iter_mut().zip(keyed).for_each(|(place, (_, at))| *place = at);
}

/// Natural order of names: numbers in them compare by value.
pub(super) fn natural(a: &str, b: &str) -> Ordering {
    let (mut a, mut b) = (a.as_bytes(), b.as_bytes());
    loop {
        let (Some(&x), Some(&y)) = (a.first(), b.first()) else { return a.len().cmp(&b.len()) };
        if x.is_ascii_digit() && y.is_ascii_digit() {
            let (m, n) = (number(&mut a), number(&mut b));
            let order = m.len().cmp(&n.len()).then_with(|| m.cmp(n));
            if order.is_ne() {
                return order;
            }
        } else if x == y {
            (a, b) = (&a[1..], &b[1..]);
        } else {
            return x.cmp(&y);
        }
    }
}

/// Removes the digits at the start of `text`; returns them without leading zeros.
fn number<'a>(text: &mut &'a [u8]) -> &'a [u8] {
    let len = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (digits, rest) = text.split_at(len);
    *text = rest;
    let zeros = digits.iter().take_while(|&&byte| byte == b'0').count();
    &digits[zeros..]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two pods of two leaf switches and two switches above them, and two at the top.
    fn three_levels() -> Input {
        let mut input = Input { hosts: vec![4, 4, 4, 4, 0, 0, 0, 0, 0, 0], links: Vec::new() };
        for pod in 0..2 {
            for leaf in 0..2 {
                for middle in 0..2 {
                    input.links.push((pod * 2 + leaf, 4 + pod * 2 + middle));
                }
            }
            for middle in 0..2 {
                input.links.push((4 + pod * 2 + middle, 8 + middle));
            }
        }
        input
    }

    #[test]
    fn a_fat_tree_is_drawn_in_rows_with_pods_grouped() {
        let layout = layout(&three_levels());
        assert_eq!((layout.kind, layout.rows), (Kind::Tree, 3));
        assert_eq!(layout.row, [2, 2, 2, 2, 1, 1, 1, 1, 0, 0]);
        assert_eq!(layout.x[..4], [0.5, 1.5, 2.0 + GAP + 0.5, 2.0 + GAP + 1.5]);
        assert_eq!(layout.x[4..8], layout.x[..4], "above their leaf switches");
        assert_eq!(layout.width, 4.0 + GAP);
        let middle = (layout.x[8] + layout.x[9]) / 2.0;
        assert!((middle - layout.width / 2.0).abs() < 1e-3, "the top is spread over all");
    }

    #[test]
    fn a_host_at_the_top_and_a_lost_link_leave_it_a_tree() {
        let mut input = three_levels();
        input.hosts[8] = 1;
        input.links.pop();
        assert_eq!(layout(&input).kind, Kind::Tree);
    }

    #[test]
    fn a_ring_is_drawn_in_rows_by_distance() {
        let links = (0..6).map(|at| (at, (at + 1) % 6)).collect();
        let layout = layout(&Input { hosts: vec![2; 6], links });
        assert_eq!((layout.kind, layout.rows), (Kind::Distance, 4));
        assert_eq!(layout.row, [0, 1, 2, 3, 2, 1]);
        assert_eq!(layout.x[1], layout.x[2], "below the one it hangs on");
        assert!(layout.x[1] < layout.x[5]);
    }

    #[test]
    fn unconnected_parts_are_drawn_side_by_side() {
        let layout = layout(&Input { hosts: vec![1; 4], links: vec![(0, 1), (2, 3)] });
        assert_eq!(layout.row, [0, 1, 0, 1]);
        assert!(layout.x[2] > layout.x[0] + 1.0 && layout.width >= layout.x[3]);
        assert_eq!(super::layout(&Input::default()), Layout::default());
    }

    #[test]
    fn the_order_of_links_changes_nothing() {
        let mut input = three_levels();
        let expected = layout(&input);
        input.links.reverse();
        input.links.iter_mut().for_each(|link| *link = (link.1, link.0));
        assert_eq!(layout(&input), expected);
    }

    #[test]
    fn numbers_in_names_count_by_their_value() {
        let mut names = ["leaf10", "leaf9", "leaf09a", "core1", "leaf", "leaf 2"];
        names.sort_by(|a, b| natural(a, b));
        assert_eq!(names, ["core1", "leaf", "leaf 2", "leaf9", "leaf09a", "leaf10"]);
    }
}
