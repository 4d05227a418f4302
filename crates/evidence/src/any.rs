//! Any value that a type allows, for tests: serde asks for the values of a type, and random bytes answer.

use crate::{About, CoreSet, Evidence};
use serde::de::value::{Error, StrDeserializer, U32Deserializer};
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, MapAccess, SeqAccess, VariantAccess,
    Visitor,
};

/// A usual text of a field, chosen by a random number, so that what refers to each other often meets. `None`: any text.
pub type Words = fn(field: &str, pick: usize) -> Option<String>;

/// Most of the time near this, in nanoseconds: then things happen together.
const NOW_NS: u64 = 200_000_000_000_000;

pub fn any<T: DeserializeOwned>(bytes: Vec<u8>, words: Words) -> T {
    let mut answers = Answers { bytes: bytes.into_iter(), field: "", is_time: false, words };
    T::deserialize(&mut answers).expect("an answer to every question")
}

/// Evidence of every kind, with every value that its types allow.
pub fn any_evidence(bytes: Vec<u8>, words: Words) -> Evidence {
    let mut evidence: Evidence = any(bytes, words);
    for scan in &mut evidence.zombie_scans {
        let (zombies, files) = (scan.zombies.len() as u32, scan.files.len() as u32);
        scan.holds.retain(|_| zombies > 0 && files > 0);
        for hold in &mut scan.holds {
            (hold.zombie, hold.file) = (hold.zombie % zombies, hold.file % files);
        }
        scan.holds.sort_by_key(|hold| hold.zombie);
    }
    evidence
}

/// Zeros once the bytes are used up, so that every list ends.
struct Answers {
    bytes: std::vec::IntoIter<u8>,
    /// The field that is asked for.
    field: &'static str,
    /// A [`Time`](crate::Time) is asked for.
    is_time: bool,
    words: Words,
}

impl Answers {
    fn byte(&mut self) -> u8 {
        self.bytes.next().unwrap_or(0)
    }

    fn below(&mut self, most: usize) -> usize {
        usize::from(self.byte()) % most
    }

    fn number(&mut self) -> u64 {
        let any = |answers: &mut Answers| u64::from_le_bytes(std::array::from_fn(|_| answers.byte()));
        match self.byte() % 8 {
            0 => [u64::MAX, i64::MAX as u64 + 1][self.below(2)],
            1 => any(self),
            2 => any(self) % 1000,
            3 => any(self) % 60 * 1_000_000_000,
            4 => any(self) % 10_000_000_000,
            _ => u64::from(self.byte() % 3),
        }
    }

    fn time(&mut self) -> u64 {
        match self.byte() % 4 {
            0 => self.number(),
            1 => self.number() % NOW_NS,
            _ => NOW_NS - self.number() % 5_000 * 1_000_000,
        }
    }

    fn char(&mut self) -> char {
        char::from_u32(self.number() as u32 % 0x11_0000).unwrap_or('é')
    }

    fn text(&mut self) -> String {
        let pick = usize::from(u16::from_le_bytes([self.byte(), self.byte()]));
        match self.field {
            "about" => About::ALL[pick % About::ALL.len()].as_str().to_owned(),
            "affinity" | "cores" | "irq_cores" | "napi_cores" | "steering" => {
                CoreSet::new((0..self.below(5)).map(|_| u32::from(self.number() as u16))).to_string()
            }
            field => match (self.below(8), (self.words)(field, pick)) {
                (0, _) => "a\0b\n'\"".to_owned(),
                (2.., Some(word)) => word,
                (length, _) => (1..length).map(|_| if self.below(2) == 0 { 'a' } else { self.char() }).collect(),
            },
        }
    }
}

macro_rules! numbers {
    ($($deserialize:ident $visit:ident $type:ty,)*) => {
        $(fn $deserialize<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            visitor.$visit(self.number() as $type)
        })*
    };
}

impl<'de> Deserializer<'de> for &mut Answers {
    type Error = Error;

    numbers! {
        deserialize_u8 visit_u8 u8,
        deserialize_u32 visit_u32 u32,
        deserialize_i8 visit_i8 i8,
        deserialize_i32 visit_i32 i32,
    }

    fn deserialize_u64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_u64(if std::mem::take(&mut self.is_time) { self.time() } else { self.number() })
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_bool(self.below(2) == 1)
    }

    fn deserialize_char<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_char(self.char())
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_string(self.text())
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_string(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.below(2) == 0 { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, name: &'static str, visitor: V) -> Result<V::Value, Error> {
        self.is_time = name == "Time";
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let left = self.below(8);
        visitor.visit_seq(Items { answers: self, left })
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, left: usize, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_seq(Items { answers: self, left })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_map(Fields { answers: self, fields: fields.iter() })
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let variant = self.below(variants.len()) as u32;
        visitor.visit_enum(Variant { answers: self, variant })
    }

    /// Only a moment of the wall clock asks so: it is written as a number or as a date.
    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.field {
            "at" | "wall" | "booted" | "last_trigger" | "next_trigger" | "started" | "first_started" => {
                visitor.visit_u64(self.number())
            }
            other => Err(serde::de::Error::custom(format!("no value for the field {other:?}"))),
        }
    }

    serde::forward_to_deserialize_any! {
        i16 i64 i128 u16 u128 f32 f64 bytes byte_buf unit unit_struct tuple_struct map identifier ignored_any
    }
}

struct Items<'a> {
    answers: &'a mut Answers,
    left: usize,
}

impl<'de> SeqAccess<'de> for Items<'_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        let Some(left) = self.left.checked_sub(1) else { return Ok(None) };
        self.left = left;
        seed.deserialize(&mut *self.answers).map(Some)
    }
}

struct Fields<'a> {
    answers: &'a mut Answers,
    fields: std::slice::Iter<'static, &'static str>,
}

impl<'de> MapAccess<'de> for Fields<'_> {
    type Error = Error;

    fn next_key_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        let Some(field) = self.fields.next() else { return Ok(None) };
        self.answers.field = field;
        let name: StrDeserializer<'_, Error> = field.into_deserializer();
        seed.deserialize(name).map(Some)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, Error> {
        seed.deserialize(&mut *self.answers)
    }
}

struct Variant<'a> {
    answers: &'a mut Answers,
    variant: u32,
}

impl<'a, 'de> EnumAccess<'de> for Variant<'a> {
    type Error = Error;
    type Variant = &'a mut Answers;

    fn variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<(T::Value, &'a mut Answers), Error> {
        let number: U32Deserializer<Error> = self.variant.into_deserializer();
        Ok((seed.deserialize(number)?, self.answers))
    }
}

impl<'de> VariantAccess<'de> for &mut Answers {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Error> {
        seed.deserialize(self)
    }

    fn tuple_variant<V: Visitor<'de>>(self, left: usize, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_tuple(left, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(self, fields: &'static [&'static str], visitor: V) -> Result<V::Value, Error> {
        self.deserialize_struct("", fields, visitor)
    }
}
