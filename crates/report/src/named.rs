//! Enums whose values have names.

/// `named!(/// ABOUT pub enum TYPE { VARIANT = NAME, … })`: an enum whose values have names, in documents and in recordings.
#[macro_export]
macro_rules! named {
    ($(#[$about:meta])* pub enum $type:ident { $($(#[$doc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
        pub enum $type {
            $($(#[$doc])* #[serde(rename = $text)] $variant,)*
        }

        impl $type {
            pub const ALL: &[$type] = &[$($type::$variant,)*];

            pub fn as_str(self) -> &'static str {
                match self { $($type::$variant => $text,)* }
            }

            pub fn parse(text: &str) -> Option<$type> {
                match text { $($text => Some($type::$variant),)* _ => None }
            }
        }
    };
}
