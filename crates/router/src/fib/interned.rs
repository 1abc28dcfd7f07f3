//! Numbered values, each stored once with a use count.

use std::collections::{BTreeMap, VecDeque};

/// Values of one kind.
#[derive(Debug)]
pub(super) struct InternedValues<K> {
    numbers: BTreeMap<K, u32>,
    /// By number: the value and its use count.
    users: BTreeMap<u32, (K, usize)>,
    free: VecDeque<u32>,
}

impl<K: Ord + Clone> InternedValues<K> {
    pub fn new() -> InternedValues<K> {
        InternedValues { numbers: BTreeMap::new(), users: BTreeMap::new(), free: VecDeque::new() }
    }

    /// Returns the number of a value and adds one use, if the value is stored.
    pub fn find(&mut self, key: &K) -> Option<u32> {
        let number = *self.numbers.get(key)?;
        self.users.get_mut(&number)?.1 += 1;
        Some(number)
    }

    /// Returns the number of a value, if it is stored.
    pub fn number(&self, key: &K) -> Option<u32> {
        self.numbers.get(key).copied()
    }

    /// Returns the value of a number.
    pub fn get(&self, number: u32) -> Option<&K> {
        self.users.get(&number).map(|(key, _)| key)
    }

    /// Returns all values in order, with their numbers.
    pub fn all(&self) -> impl Iterator<Item = (&K, u32)> {
        self.numbers.iter().map(|(key, number)| (key, *number))
    }

    /// Returns the values from `first` on, with their numbers.
    pub fn from(&self, first: &K) -> impl Iterator<Item = (&K, u32)> {
        self.numbers.range(first..).map(|(key, number)| (key, *number))
    }

    /// Takes the least recently freed number.
    pub fn free(&mut self) -> Option<u32> {
        self.free.pop_front()
    }

    /// Stores a value with one use.
    pub fn add(&mut self, key: &K, number: u32) {
        self.numbers.insert(key.clone(), number);
        self.users.insert(number, (key.clone(), 1));
    }

    /// Removes one use. Returns the value if it was the last one.
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
