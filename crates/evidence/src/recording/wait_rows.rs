//! The wait ledger as rows: sums for people, and the books as compressed JSON. Field names would be most of it, so accounts and
//! charges are arrays.

use super::chunk;
use super::rows::{Cell, Columns, Stored, cell, from_json, insert_readable, json};
use crate::waits::{Account, Block, CgroupWeight, Charge, LedgerMethod, Party, Runner, WaitLedger};
use rusqlite::types::{FromSqlError, FromSqlResult, ToSqlOutput, ValueRef};
use rusqlite::{Row, Transaction};
use serde::{Deserialize, Serialize};

const ZSTD_LEVEL: i32 = 3;

#[derive(Serialize, Deserialize)]
struct Books {
    parties: Vec<Party>,
    /// Party, tid, [`numbers`].
    accounts: Vec<(u32, Option<u32>, [u64; 9])>,
    /// Victim, tid, to, core, ns.
    charges: Vec<(u32, Option<u32>, Runner, u32, u64)>,
    blocks: Vec<Block>,
    #[serde(default)]
    weights: Vec<CgroupWeight>,
}

impl Books {
    fn of(ledger: &WaitLedger) -> Books {
        let account = |a: &Account| (a.party, a.tid, numbers(&mut a.clone()).map(|number| *number));
        Books {
            parties: ledger.parties.clone(),
            accounts: ledger.accounts.iter().map(account).collect(),
            charges: ledger.charges.iter().map(|c| (c.victim, c.tid, c.to, c.core, c.ns)).collect(),
            blocks: ledger.blocks.clone(),
            weights: ledger.weights.clone(),
        }
    }

    fn into(self, ledger: &mut WaitLedger) {
        let account = |(party, tid, stored): (u32, Option<u32>, [u64; 9])| {
            let mut account = Account { party, tid, ..Account::default() };
            for (number, stored) in numbers(&mut account).into_iter().zip(stored) {
                *number = stored;
            }
            account
        };
        ledger.parties = self.parties;
        ledger.accounts = self.accounts.into_iter().map(account).collect();
        ledger.charges =
            self.charges.into_iter().map(|(victim, tid, to, core, ns)| Charge { victim, tid, to, core, ns }).collect();
        ledger.blocks = self.blocks;
        ledger.weights = self.weights;
    }
}

/// In the order in which they are stored.
fn numbers(account: &mut Account) -> [&mut u64; 9] {
    let Account {
        party: _,
        tid: _,
        ran_ns,
        waited_ns,
        throttled_ns,
        blocked_ns,
        slept_ns,
        longest_wait_ns,
        runs,
        waits,
        open_wait_ns,
    } = account;
    [ran_ns, waited_ns, throttled_ns, blocked_ns, slept_ns, longest_wait_ns, runs, waits, open_wait_ns]
}

fn not_packed(error: impl std::error::Error + Send + Sync + 'static) -> rusqlite::Error {
    rusqlite::Error::ToSqlConversionFailure(error.into())
}

impl Cell for LedgerMethod {
    fn put(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(self.as_str().into())
    }

    fn get(cell: ValueRef<'_>) -> FromSqlResult<LedgerMethod> {
        let text = cell.as_str()?;
        let known = [LedgerMethod::Bpf, LedgerMethod::Estimate].into_iter().find(|method| method.as_str() == text);
        known.ok_or_else(|| FromSqlError::Other(format!("it is {text:?}").into()))
    }
}

impl Stored for WaitLedger {
    const TABLE: &'static str = "wait_ledgers";
}

impl Columns for WaitLedger {
    fn names(names: &mut Vec<&'static str>) {
        names.extend(["from_ns", "to_ns", "method", "watched_ns", "unbooked_ns", "books"]);
    }

    fn put<'a>(&'a self, cells: &mut Vec<ToSqlOutput<'a>>) -> rusqlite::Result<()> {
        let books = json(&Books::of(self))?;
        let packed = chunk::compress(books.as_bytes(), ZSTD_LEVEL).map_err(not_packed)?;
        cells.extend([
            self.from.put()?,
            self.to.put()?,
            self.method.put()?,
            self.watched_ns.put()?,
            self.unbooked_ns.put()?,
        ]);
        cells.push(packed.into());
        Ok(())
    }

    fn get(row: &Row<'_>) -> rusqlite::Result<WaitLedger> {
        let mut ledger = WaitLedger {
            from: cell(row, "from_ns")?,
            to: cell(row, "to_ns")?,
            method: cell(row, "method")?,
            watched_ns: cell(row, "watched_ns")?,
            unbooked_ns: cell(row, "unbooked_ns")?,
            ..WaitLedger::default()
        };
        let books = chunk::decompress(row.get_ref("books")?.as_blob()?).map_err(not_packed)?;
        let books = String::from_utf8(books).map_err(not_packed)?;
        from_json::<Books>(&books)?.into(&mut ledger);
        Ok(ledger)
    }
}

/// With sums for people who read the table.
pub fn insert_waits(tx: &Transaction<'_>, items: &[WaitLedger]) -> rusqlite::Result<()> {
    insert_readable(tx, items, ["waited_ns", "throttled_ns", "blocked_ns"], |ledger| {
        let sums: [fn(&Account) -> u64; 3] = [|a| a.waited_ns, |a| a.throttled_ns, |a| a.blocked_ns];
        sums.map(|of| (ledger.accounts.iter().map(of).fold(0, u64::saturating_add) as i64).into())
    })
}
