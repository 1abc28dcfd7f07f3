//! Counters declared once, each with its name, severity and meaning.

/// How much a count matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Belongs to normal operation.
    Info,
    /// Somebody sends what they should not, or more than fits.
    Warning,
    /// Somebody is misconfigured, broken or attacking.
    Error,
}

impl Severity {
    /// Its name in outputs.
    pub const fn name(self) -> &'static str {
        match self {
            Severity::Info => "info",
            Severity::Warning => "warning",
            Severity::Error => "error",
        }
    }
}

/// Declares an enum of which each variant has a name, a [`Severity`] and a sentence.
#[macro_export]
macro_rules! counted {
    ($(#[$about:meta])* $counter:ident { $($variant:ident $name:literal $severity:ident $meaning:literal)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $counter {
            $(#[doc = $meaning] $variant,)*
        }

        impl $counter {
            /// All of them, in order.
            pub const ALL: &[$counter] = &[$($counter::$variant,)*];

            /// Its name in outputs.
            pub const fn name(self) -> &'static str {
                match self { $($counter::$variant => $name,)* }
            }

            /// How much it matters.
            pub const fn severity(self) -> $crate::counter::Severity {
                match self { $($counter::$variant => $crate::counter::Severity::$severity,)* }
            }

            /// One sentence for people.
            pub const fn meaning(self) -> &'static str {
                match self { $($counter::$variant => $meaning,)* }
            }
        }
    };
}

/// Declares such an enum called `Counter`, and `Counters`, a count of each.
#[macro_export]
macro_rules! counters {
    ($(#[$about:meta])* $($variant:ident $name:literal $severity:ident $meaning:literal)*) => {
        $crate::counted! {
            $(#[$about])*
            Counter { $($variant $name $severity $meaning)* }
        }

        /// A count of each.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Counters([u64; Counter::ALL.len()]);

        impl Default for Counters {
            fn default() -> Counters {
                Counters([0; Counter::ALL.len()])
            }
        }

        impl Counters {
            /// How often it happened.
            pub fn get(&self, counter: Counter) -> u64 {
                self.0[counter as usize]
            }

            /// What happened at all.
            pub fn iter(&self) -> impl Iterator<Item = (Counter, u64)> + '_ {
                Counter::ALL.iter().map(|counter| (*counter, self.get(*counter))).filter(|(_, count)| *count > 0)
            }

            pub(super) fn add(&mut self, counter: Counter, times: u64) {
                self.0[counter as usize] += times;
            }
        }
    };
}
