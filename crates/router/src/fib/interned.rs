//! Things with numbers, each there once however many lead to it.

use std::collections::{BTreeMap, VecDeque};

/// Things of one kind.
#[derive(Debug)]
pub(super) struct Interned<K> {
    numbers: BTreeMap<K, u32>,
    /// By number: what it is, and how many lead there.
    users: BTreeMap<u32, (K, usize)>,
    free: VecDeque<u32>,
}

impl<K: Ord + Clone> Interned<K> {
    pub fn new() -> Interned<K> {
        Interned { numbers: BTreeMap::new(), users: BTreeMap::new(), free: VecDeque::new() }
    }

    /// One more leads to it, if it is there.
    pub fn find(&mut self, key: &K) -> Option<u32> {
        let number = *self.numbers.get(key)?;
        self.users.get_mut(&number)?.1 += 1;
        Some(number)
    }

    /// Its number, if it is there.
    pub fn number(&self, key: &K) -> Option<u32> {
        self.numbers.get(key).copied()
    }

    /// What has a number.
    pub fn get(&self, number: u32) -> Option<&K> {
        self.users.get(&number).map(|(key, _)| key)
    }

    /// All of them, in order, with their numbers.
    pub fn all(&self) -> impl Iterator<Item = (&K, u32)> {
        self.numbers.iter().map(|(key, number)| (key, *number))
    }

    /// The same from one on.
    pub fn from(&self, first: &K) -> impl Iterator<Item = (&K, u32)> {
        self.numbers.range(first..).map(|(key, number)| (key, *number))
    }

    /// A number that had another one, which has waited longest.
    pub fn free(&mut self) -> Option<u32> {
        self.free.pop_front()
    }

    /// One leads to it from now on.
    pub fn add(&mut self, key: &K, number: u32) {
        self.numbers.insert(key.clone(), number);
        self.users.insert(number, (key.clone(), 1));
    }

    /// One less leads to it; what it was, if nothing does now.
    pub fn release(&mut self, number: u32) -> Option<K> {
        let (_, users) = self.users.get_mut(&number)?;
        *users -= 1;
        if *users > 0 {
            return None;
        }
        let (key, _) = self.users.remove(&number)?;
        self.numbers.remove(&key);
        self.free.push_back(number);
        Some(key)
    }
}
