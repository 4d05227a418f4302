//! The recording from its users' view: what is written comes back, whatever happens to the writer, the disk or the file.

mod cost;
mod damaged;
mod full_disk;
mod hostile;
mod killed;
mod refused;
mod round_trip;
mod scratch;
mod spans;
mod zombies;
