//! Limits in all and for each node, user or host, so that one of them does not use up the limit of
//! all.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What is taken of a limit, in all and by each.
#[derive(Debug)]
pub struct Quota<K> {
    max: usize,
    each_max: usize,
    /// Part of `max` that only trusted ones may take.
    reserve: usize,
    taken: usize,
    /// At most `max`.
    by_key: HashMap<K, usize>,
}

/// Why no more can be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// As many are taken in all as may be.
    All,
    /// This one has taken as many as each may.
    Share,
}

impl<K: Copy + Eq + Hash> Quota<K> {
    /// At most `max` in all, and `each_max` by each.
    pub fn new(max: usize, each_max: usize) -> Self {
        Self { max, each_max, reserve: 0, taken: 0, by_key: HashMap::new() }
    }

    /// Takes one more for `key`.
    pub fn take(&mut self, key: K) -> Result<(), Full> {
        self.take_up_to(key, self.each_max, self.max - self.reserve)
    }

    fn take_up_to(&mut self, key: K, each_max: usize, max: usize) -> Result<(), Full> {
        let of_key = self.by_key.get(&key).copied().unwrap_or_default();
        if of_key >= each_max {
            return Err(Full::Share);
        }
        if self.taken >= max {
            return Err(Full::All);
        }
        self.taken += 1;
        self.by_key.insert(key, of_key + 1);
        Ok(())
    }

    fn give_back(&mut self, key: K) {
        if let Some(of_key) = self.by_key.get_mut(&key) {
            (*of_key, self.taken) = (*of_key - 1, self.taken - 1);
            if *of_key == 0 {
                self.by_key.remove(&key);
            }
        }
    }
}

/// A quota of what ends. Clones share it.
#[derive(Debug)]
pub struct Places<K>(Arc<Mutex<Quota<K>>>);

/// One of them, given back when dropped.
#[derive(Debug)]
pub struct Place<K: Copy + Eq + Hash> {
    places: Places<K>,
    key: K,
}

impl<K> Clone for Places<K> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K: Copy + Eq + Hash> Places<K> {
    /// At most `max` in all, and `each_max` of each.
    pub fn new(max: usize, each_max: usize) -> Self {
        Self(Arc::new(Mutex::new(Quota::new(max, each_max))))
    }

    /// The same, of which `reserve` are for trusted ones only.
    #[must_use]
    pub fn with_reserve(self, reserve: usize) -> Self {
        let mut quota = self.lock();
        quota.reserve = reserve.min(quota.max);
        drop(quota);
        self
    }

    /// Takes a place for `key`.
    pub fn enter(&self, key: K) -> Result<Place<K>, Full> {
        self.lock().take(key)?;
        Ok(Place { places: self.clone(), key })
    }

    /// The same for one that may have all places.
    pub fn enter_trusted(&self, key: K) -> Result<Place<K>, Full> {
        let mut quota = self.lock();
        let max = quota.max;
        quota.take_up_to(key, usize::MAX, max)?;
        drop(quota);
        Ok(Place { places: self.clone(), key })
    }

    /// Takes a place for `key`, also of the reserve if it is trusted.
    pub fn enter_as(&self, is_trusted: bool, key: K) -> Result<Place<K>, Full> {
        let mut quota = self.lock();
        let reserve = if is_trusted { 0 } else { quota.reserve };
        let (each_max, max) = (quota.each_max, quota.max - reserve);
        quota.take_up_to(key, each_max, max)?;
        drop(quota);
        Ok(Place { places: self.clone(), key })
    }

    fn lock(&self) -> MutexGuard<'_, Quota<K>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Copy + Eq + Hash> Drop for Place<K> {
    fn drop(&mut self) {
        self.places.lock().give_back(self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_leaves_room_for_the_others() {
        let places = Places::new(4, 2);
        let enter = |key| places.enter(key);
        let (first, second) = (enter(1).unwrap(), enter(1).unwrap());
        assert_eq!(enter(1).unwrap_err(), Full::Share);
        let others = [enter(2).unwrap(), enter(3).unwrap()];
        assert_eq!(enter(4).unwrap_err(), Full::All);
        drop(first);
        let third = enter(4).unwrap();
        drop((second, others));
        let trusted = [2; 3].map(|key| places.enter_trusted(key).unwrap());
        assert_eq!(places.enter_trusted(2).unwrap_err(), Full::All);
        drop((trusted, third));
        assert!(places.lock().by_key.is_empty() && places.lock().taken == 0);
    }

    #[test]
    fn many_leave_room_for_the_trusted() {
        let places = Places::new(4, 2).with_reserve(1);
        let _held = [1, 2, 3].map(|key| places.enter(key).unwrap());
        assert_eq!(places.enter(4).unwrap_err(), Full::All);
        let _trusted = places.enter_as(true, 5).unwrap();
        assert_eq!(places.enter_as(true, 5).unwrap_err(), Full::All);
    }
}
