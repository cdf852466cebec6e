//! A list of links in which any link can be moved and any two can be compared.
//!
//! Each link has a label; a moved link gets a label between those of its new neighbours. When no
//! label is left between them, all labels are spread again, which is rare with 64 bits (Dietz,
//! Sleator: "Two algorithms for maintaining order in a list", 1987).

/// The ordered list. Slices are indexed by link; the index one past the last link represents both
/// ends of the list.
#[derive(Debug)]
pub(super) struct Order {
    labels: Vec<u64>,
    previous: Vec<u32>,
    next: Vec<u32>,
}

impl Order {
    /// Creates a list of links in numeric order.
    pub(super) fn new(links: usize) -> Self {
        let ends = links as u32;
        let mut order = Self {
            labels: vec![0; links + 1],
            previous: std::iter::once(ends).chain(0..ends).collect(),
            next: (1..=ends).chain([0]).collect(),
        };
        order.spread();
        order
    }

    /// Returns a label; labels compare as the links are ordered.
    #[inline]
    pub(super) fn label(&self, link: u32) -> u64 {
        self.labels[link as usize]
    }

    /// Moves links, given in their order, to directly before another.
    pub(super) fn move_before(&mut self, links: &[u32], other: u32) {
        links.iter().for_each(|&link| self.take_out(link));
        self.insert(links, self.previous[other as usize]);
    }

    /// Moves links, given in their order, to directly after another.
    pub(super) fn move_behind(&mut self, links: &[u32], other: u32) {
        links.iter().for_each(|&link| self.take_out(link));
        self.insert(links, other);
    }

    fn take_out(&mut self, link: u32) {
        let (previous, next) = (self.previous[link as usize], self.next[link as usize]);
        self.next[previous as usize] = next;
        self.previous[next as usize] = previous;
    }

    fn insert(&mut self, links: &[u32], behind: u32) {
        let end = self.next[behind as usize];
        let ends = self.ends();
        let low = if behind == ends { 0 } else { self.label(behind) };
        let high = if end == ends { u64::MAX } else { self.label(end) };
        let step = (high - low) / (links.len() as u64 + 1);
        let (mut last, mut label) = (behind, low);
        for &link in links {
            label += step;
            self.labels[link as usize] = label;
            self.next[last as usize] = link;
            self.previous[link as usize] = last;
            last = link;
        }
        self.next[last as usize] = end;
        self.previous[end as usize] = last;
        if step == 0 {
            self.spread();
        }
    }

    /// Assigns equally spaced labels to all links.
    fn spread(&mut self) {
        let ends = self.ends();
        let step = u64::MAX / (u64::from(ends) + 1);
        let (mut link, mut label) = (self.next[ends as usize], 0);
        while link != ends {
            label += step;
            self.labels[link as usize] = label;
            link = self.next[link as usize];
        }
    }

    fn ends(&self) -> u32 {
        (self.labels.len() - 1) as u32
    }
}
