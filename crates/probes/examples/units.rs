//! One look at the units of a systemd: `units ADDRESS`; a line of JSON says what it took. With `again`, another look, at what changed,
//! follows each line of input. For measurements (`cargo xtask bench units`).

use coroner_probes::root::{now, own_cpu};
use coroner_probes::units::{Look, UnitReader};
use coroner_probes::{Evidence, Root};
use std::time::Duration;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next();
    let again = arguments.next().as_deref() == Some("again");
    let mut reader = UnitReader::new(Root::live(), address);
    let mut cpu = Duration::ZERO;
    let mut look = |look: Look| {
        let mut evidence = Evidence::default();
        reader.start(now(), look);
        reader.collect(Duration::from_secs(60), &mut evidence);
        let told = evidence.units.iter().filter(|u| u.invocation_id.is_some()).count();
        let report = serde_json::json!({
            "units": evidence.units.len(),
            "with_invocation": told,
            "unseen": evidence.unseen.iter().map(|u| &u.why).collect::<Vec<_>>(),
            "cpu_ms": (own_cpu() - cpu).as_secs_f64() * 1e3,
            "took_ms": reader.took().as_secs_f64() * 1e3,
        });
        println!("{report}");
        cpu = own_cpu();
    };
    look(Look::All);
    if again {
        std::io::stdin().lines().map_while(Result::ok).for_each(|_| look(Look::Changes));
    }
}
