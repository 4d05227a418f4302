//! What people and programs read.

pub mod cores_text;
pub mod diagnosis_json;
pub mod diagnosis_text;
pub mod progress;
pub mod terminal;
