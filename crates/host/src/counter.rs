//! Declaration of counters, each with a name, a severity and a meaning.

/// Severity of a counted event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Normal operation.
    Info,
    /// Peer sends invalid data, or more than fits.
    Warning,
    /// Peer is misconfigured, broken or attacking.
    Error,
}

impl Severity {
    /// Returns the name used in outputs.
    pub const fn name(self) -> &'static str {
        match self {
            Severity::Info => "info",
            Severity::Warning => "warning",
            Severity::Error => "error",
        }
    }
}

/// Declares an enum whose variants have a name, a [`Severity`] and a one-sentence meaning.
#[macro_export]
macro_rules! counted {
    ($(#[$about:meta])* $counter:ident { $($variant:ident $name:literal $severity:ident $meaning:literal)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $counter {
            $(#[doc = $meaning] $variant,)*
        }

        impl $counter {
            /// All variants in order of declaration.
            pub const ALL: &[$counter] = &[$($counter::$variant,)*];

            /// Returns the name used in outputs.
            pub const fn name(self) -> &'static str {
                match self { $($counter::$variant => $name,)* }
            }

            /// Returns the severity.
            pub const fn severity(self) -> $crate::counter::Severity {
                match self { $($counter::$variant => $crate::counter::Severity::$severity,)* }
            }

            /// Returns a one-sentence description.
            pub const fn meaning(self) -> &'static str {
                match self { $($counter::$variant => $meaning,)* }
            }
        }
    };
}

/// Declares a `counted!` enum named `Counter`, and `Counters`, which counts each of its variants.
#[macro_export]
macro_rules! counters {
    ($(#[$about:meta])* $($variant:ident $name:literal $severity:ident $meaning:literal)*) => {
        $crate::counted! {
            $(#[$about])*
            Counter { $($variant $name $severity $meaning)* }
        }

        /// Count of each event.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Counters([u64; Counter::ALL.len()]);

        impl Default for Counters {
            fn default() -> Counters {
                Counters([0; Counter::ALL.len()])
            }
        }

        impl Counters {
            /// Returns the count of an event.
            pub fn get(&self, counter: Counter) -> u64 {
                self.0[counter as usize]
            }

            /// Returns the events with a nonzero count.
            pub fn iter(&self) -> impl Iterator<Item = (Counter, u64)> + '_ {
                Counter::ALL.iter().map(|counter| (*counter, self.get(*counter))).filter(|(_, count)| *count > 0)
            }

            pub(super) fn add(&mut self, counter: Counter, times: u64) {
                self.0[counter as usize] += times;
            }
        }
    };
}
