//! Macros that declare tables: a struct or enum whose documentation, types and defaults also give its
//! description ([`Kind`](crate::table::Kind)).

/// Declares a table: `struct Link "a link" { field: Type = default, … ..part: Part }`.
macro_rules! table {
    (
        $(#[doc = $about:literal])+
        $vis:vis struct $table:ident $what:literal $(short $short:literal)? {
            $($(#[doc = $doc:literal])+ $field:ident : $type:ty $(= $default:expr)?,)*
            $(.. $part:ident : $part_type:ty)?
        }
    ) => {
        $(#[doc = $about])+
        // Some fields serve only the description.
        #[allow(dead_code)]
        #[derive(Clone)]
        $vis struct $table {
            $($vis $field: $type,)*
            $($vis $part: $part_type,)?
        }

        impl $crate::table::Fields for $table {
            const WHAT: &'static str = $what;

            fn fields() -> &'static [$crate::table::Field] {
                static ALL: std::sync::OnceLock<Vec<$crate::table::Field>> = std::sync::OnceLock::new();
                const OWN: &[$crate::table::Field] = &[$($crate::table::Field::new::<$type>(
                    stringify!($field),
                    concat!($($doc),+).trim_ascii(),
                    $crate::table::default!($($default)?),
                )),*];
                ALL.get_or_init(|| {
                    let parts: &[&[$crate::table::Field]] =
                        &[OWN, $(<$part_type as $crate::table::Fields>::fields())?];
                    parts.concat()
                })
            }

            fn take(reader: &mut $crate::table::FieldReader<'_>) -> Option<Self> {
                $(let $field = reader.field::<$type>(stringify!($field));)*
                $(let $part = <$part_type as $crate::table::Fields>::take(reader);)?
                Some($table { $($field: $field?,)* $($part: $part?)? })
            }
        }

        impl $crate::table::Decode for $table {
            fn kind() -> $crate::table::ValueKind {
                #[allow(unused_mut, unused_assignments)]
                let mut shorthand = None;
                $(shorthand = Some($short);)?
                let fields = <$table as $crate::table::Fields>::fields().into();
                let about = concat!($($about),+).trim_ascii();
                $crate::table::ValueKind::Table { what: $what, about, fields, shorthand }
            }

            fn decode(node: &$crate::tree::TomlNode, problems: &mut $crate::error::Problems) -> Option<Self> {
                $crate::table::decode_table(node, problems)
            }
        }
    };
}

macro_rules! default {
    () => {
        None
    };
    ($default:expr) => {
        Some(|| $crate::table::Literal::from($default))
    };
}

/// Declares a table whose fields depend on a tag.
macro_rules! tagged {
    (
        $(#[doc = $about:literal])+
        $vis:vis enum $table:ident $what:literal by $tag:literal $(or $default:literal)? {
            $($(#[doc = $doc:literal])+ $variant:ident ( $fields:ty ) = $name:literal,)+
        }
    ) => {
        $(#[doc = $about])+
        // A file has few of these values.
        #[allow(clippy::large_enum_variant)]
        #[derive(Clone)]
        $vis enum $table {
            $($(#[doc = $doc])+ $variant($fields),)+
        }

        impl $crate::table::Decode for $table {
            fn kind() -> $crate::table::ValueKind {
                #[allow(unused_mut, unused_assignments)]
                let mut default = None;
                $(default = Some($default);)?
                $crate::table::ValueKind::Tagged($crate::table::TaggedTable {
                    what: $what,
                    about: concat!($($about),+).trim_ascii(),
                    tag: $tag,
                    default,
                    variants: const {
                        &[$($crate::table::TaggedVariant {
                            name: $name,
                            doc: concat!($($doc),+).trim_ascii(),
                            fields: <$fields as $crate::table::Fields>::fields,
                        }),+]
                    },
                })
            }

            fn decode(node: &$crate::tree::TomlNode, problems: &mut $crate::error::Problems) -> Option<Self> {
                let kind = Self::kind();
                let $crate::table::ValueKind::Tagged(tagged) = &kind else { unreachable!() };
                let (name, table) = $crate::table::open_tagged(node, tagged, problems)?;
                match name {
                    $($name => $crate::table::take_variant::<$fields>(&table, node.place, problems)
                        .map($table::$variant),)+
                    _ => unreachable!("open_tagged returns declared tags only"),
                }
            }
        }
    };
}

/// Declares the words for the values of an enum, which may belong to another crate.
macro_rules! choice {
    ($type:ty { $($(#[doc = $doc:literal])+ $name:literal => $value:expr,)+ }) => {
        impl $crate::table::Decode for $type {
            fn kind() -> $crate::table::ValueKind {
                $crate::table::ValueKind::Choice(vec![$(($name, concat!($($doc),+).trim_ascii())),+])
            }

            fn decode(node: &$crate::tree::TomlNode, problems: &mut $crate::error::Problems) -> Option<Self> {
                match node.text() {
                    $(Some($name) => Some($value),)+
                    _ => $crate::table::refuse_choice(node, &Self::kind(), problems),
                }
            }
        }
    };
}

pub(crate) use {choice, default, table, tagged};
