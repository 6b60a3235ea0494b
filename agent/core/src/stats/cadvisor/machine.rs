//! The machine. Source: cAdvisor `metrics/prometheus_machine.go`.

use super::{Collected, Exposition, Kind, Labels, float, scrape_error};
use crate::stats::Machine;

/// A family of the machine.
type Series = (&'static str, &'static str, fn(&Machine) -> f64);

const ALL: [Series; 7] = [
    ("machine_cpu_books", "Books of processors: of mainframes alone.", |_| 0.0),
    ("machine_cpu_cores", "Processors that the kernel sees.", |machine| float(machine.processors[0])),
    ("machine_cpu_drawers", "Drawers of processors: of mainframes alone.", |_| 0.0),
    ("machine_cpu_physical_cores", "Cores, whatever threads each has.", |machine| {
        float(machine.processors[1])
    }),
    ("machine_cpu_sockets", "Sockets with a processor in them.", |machine| float(machine.processors[2])),
    ("machine_memory_bytes", "Memory of the machine, in bytes.", |machine| float(machine.memory.total)),
    ("machine_nvm_avg_power_budget_watts", "Power for memory that lasts, which is not asked for: 0.", |_| {
        0.0
    }),
];

/// Writes them.
pub(super) fn write(text: &mut Exposition, read: Option<&Collected>) {
    if let Some(read) = read {
        let machine = &read.node.machine;
        let [machine_id, system_uuid, boot_id] = &machine.ids;
        let labels = Labels::new([
            ("machine_id", machine_id.as_str()),
            ("system_uuid", system_uuid),
            ("boot_id", boot_id),
        ]);
        let line = |text: &mut Exposition, name, more: &Labels, value| {
            text.line(name, &labels, more, value, Some(read.at));
        };
        for (name, help, value) in ALL {
            text.family(name, help, Kind::Gauge);
            line(text, name, &Labels::default(), value(machine));
        }
        let name = "machine_nvm_capacity";
        text.family(name, "Bytes of memory that lasts, by mode, which are not asked for: 0.", Kind::Gauge);
        for mode in ["app_direct_mode", "memory_mode"] {
            line(text, name, &Labels::new([("mode", mode)]), 0.0);
        }
    }
    let help = "Whether the machine could not be read.";
    scrape_error(text, "machine_scrape_error", help, read);
    if let Some(read) = read {
        let name = "machine_swap_bytes";
        let [machine_id, system_uuid, boot_id] = &read.node.machine.ids;
        let labels = Labels::new([
            ("machine_id", machine_id.as_str()),
            ("system_uuid", system_uuid),
            ("boot_id", boot_id),
        ]);
        text.family(name, "Swap of the machine, in bytes.", Kind::Gauge);
        text.line(
            name,
            &labels,
            &Labels::default(),
            float(read.node.machine.memory.swap_total),
            Some(read.at),
        );
    }
}
