//! Slim Fly (Besta, Hoefler 2014): graphs of McKay, Miller and Širáň, in which any two switches are
//! at most two links apart, with nearly as many switches as their degree permits.
//!
//! Two halves of q × q switches, for a prime q. In a half, switches of a column are linked if their
//! rows differ by an element of a generating set; switch (x, y) of the first half is linked to
//! (m, c) of the second if y = mx + c modulo q. The paper also admits powers of primes.

use super::GenerateError;
use super::grid::add_hosts;
use super::plan::{Plan, radix_for, within};

/// Parameters of a Slim Fly. The first ports of a switch are for links within its half, the next
/// for those to the other half, the last for hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlimFly {
    /// A prime above 2: there are 2q² switches, each with (3q ± 1) / 2 links.
    pub q: u8,
    /// Hosts per switch; about half as many as links give full bandwidth.
    pub hosts_per_switch: u8,
    /// Ports per switch; the smallest common number that suffices if `None`.
    pub radix: Option<u8>,
}

impl SlimFly {
    pub(super) fn plan(&self) -> Result<Plan, GenerateError> {
        let q = usize::from(self.q);
        within("--q", q, 3, 128)?;
        if (2..q).take_while(|factor| factor * factor <= q).any(|factor| q.is_multiple_of(factor)) {
            return Err(GenerateError::NoPrime { value: q });
        }
        let sets = generating_sets(q);
        let cables = sets[0].len() + q;
        let radix = radix_for(cables + usize::from(self.hosts_per_switch), self.radix)?;
        let names = (0..2 * q * q).map(|index| {
            let half = if index < q * q { 'a' } else { 'b' };
            format!("{half}{:03}-{:03}", index / q % q, index % q)
        });
        let mut plan = Plan::new(names.collect(), radix);
        let mut used = vec![0u8; 2 * q * q];
        let mut link = |plan: &mut Plan, a: usize, b: usize| {
            let [a, b] = [a, b].map(|switch| {
                used[switch] += 1;
                (switch, used[switch])
            });
            plan.links.push((a, b));
        };
        for (half, set) in sets.iter().enumerate() {
            for column in 0..q {
                let first = half * q * q + column * q;
                for row in 0..q {
                    let linked = |other: &usize| set.contains(&(other - row));
                    for other in (row + 1..q).filter(linked) {
                        link(&mut plan, first + row, first + other);
                    }
                }
            }
        }
        for x in 0..q {
            for y in 0..q {
                for m in 0..q {
                    let c = (y + q * q - m * x) % q;
                    link(&mut plan, x * q + y, q * q + m * q + c);
                }
            }
        }
        (0..2 * q * q).for_each(|at| add_hosts(&mut plan, at, cables, self.hosts_per_switch));
        Ok(plan)
    }
}

/// The differences of linked rows in each half. A difference is in a set with its negative.
fn generating_sets(q: usize) -> [Vec<usize>; 2] {
    let powers = |root: usize| {
        std::iter::successors(Some(1), move |power| Some(power * root % q)).take(q - 1)
    };
    let is_primitive = |root: &usize| powers(*root).skip(1).all(|power| power != 1);
    let root = (2..q).find(is_primitive).expect("a prime has a primitive root");
    let powers: Vec<usize> = powers(root).collect();
    if q % 4 == 1 {
        return [0, 1].map(|first| powers.iter().copied().skip(first).step_by(2).collect());
    }
    // q = 4w - 1: even powers, and beyond the middle odd ones; shifted by one for the other half.
    let half = q.div_ceil(4) * 2;
    [0, 1].map(|first| {
        let near = (first..half + first - 1).step_by(2);
        let far = (half + first - 1..q - 1 + first).step_by(2);
        near.chain(far).map(|exponent| powers[exponent % (q - 1)]).collect()
    })
}
