//! An error in the log is a broken invariant: it fails the life in which it is written.

use std::{
    fmt::{Debug, Write},
    sync::Once,
};

use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};

/// Makes every error in the log of this process a panic.
pub(crate) fn fail_on_errors() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| tracing::subscriber::set_global_default(Errors).expect("nobody else listens"));
}

struct Errors;

impl Subscriber for Errors {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::ERROR
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields(String::new());
        event.record(&mut fields);
        panic!("an error in the log:{}", fields.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Writing to a String cannot fail.
        let _written = write!(self.0, " {field}={value:?}");
    }
}

#[test]
#[should_panic(expected = "restored twice")]
fn an_error_in_the_log_fails_a_life() {
    let mut run = crate::run::Run::new();
    let restored = run.world.restored(run.now);
    run.handle(berth_core::event::Event::Restored(Box::new(restored)));
}
