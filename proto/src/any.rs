//! Messages inside [`Any`], named as containerd names them.

use prost::{Message, Name};
use prost_types::Any;

/// An [`Any`] that could not be opened as the message asked for.
#[derive(Debug, thiserror::Error)]
pub enum AnyError {
    /// It holds another message.
    #[error("read a {expected}: the value is a {found:?}")]
    OtherType {
        /// Full name of the message asked for.
        expected: String,
        /// Type URL of the value.
        found: String,
    },
    /// Its bytes are not that message.
    #[error("decode a {expected}")]
    Decode {
        /// Full name of the message asked for.
        expected: String,
        /// What is wrong with the bytes.
        source: prost::DecodeError,
    },
}

/// Puts a message into an [`Any`] whose type URL is the bare full name, which is the only form that containerd's
/// `typeurl` package looks up.
pub fn pack<M: Message + Name>(message: &M) -> Any {
    Any { type_url: M::full_name(), value: message.encode_to_vec() }
}

/// Reads the message in `any`, whether its type URL is a bare name or one behind a domain.
pub fn unpack<M: Message + Name + Default>(any: &Any) -> Result<M, AnyError> {
    let expected = M::full_name();
    let name = any.type_url.rsplit('/').next().unwrap_or_default();
    if name != expected {
        return Err(AnyError::OtherType { expected, found: any.type_url.clone() });
    }
    M::decode(any.value.as_slice()).map_err(|source| AnyError::Decode { expected, source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{events::TaskOom, runc::ProcessDetails};

    #[test]
    fn opens_what_it_packed_under_both_forms_of_the_name() {
        let event = TaskOom { container_id: "c1".to_owned() };
        let mut any = pack(&event);
        assert_eq!(any.type_url, "containerd.events.TaskOOM");
        assert_eq!(unpack::<TaskOom>(&any).unwrap(), event);
        any.type_url.insert_str(0, "type.googleapis.com/");
        assert_eq!(unpack::<TaskOom>(&any).unwrap(), event);
    }

    #[test]
    fn refuses_another_message_and_broken_bytes() {
        let mut any = pack(&TaskOom { container_id: "c1".to_owned() });
        assert!(matches!(unpack::<ProcessDetails>(&any), Err(AnyError::OtherType { .. })));
        any.value = vec![0xff];
        assert!(matches!(unpack::<TaskOom>(&any), Err(AnyError::Decode { .. })));
    }
}
