//! Every type with every protocol, each a test of its own, so that none takes more than a few minutes in the long form.

mod simple {
    use crate::results_are_right;
    use nccl::plan::call::DataType;
    use nccl::plan::layout::Proto;

    #[test]
    fn int8() {
        results_are_right(Proto::Simple, DataType::Int8);
    }

    #[test]
    fn uint8() {
        results_are_right(Proto::Simple, DataType::Uint8);
    }

    #[test]
    fn int32() {
        results_are_right(Proto::Simple, DataType::Int32);
    }

    #[test]
    fn uint32() {
        results_are_right(Proto::Simple, DataType::Uint32);
    }

    #[test]
    fn int64() {
        results_are_right(Proto::Simple, DataType::Int64);
    }

    #[test]
    fn uint64() {
        results_are_right(Proto::Simple, DataType::Uint64);
    }

    #[test]
    fn float16() {
        results_are_right(Proto::Simple, DataType::Float16);
    }

    #[test]
    fn float32() {
        results_are_right(Proto::Simple, DataType::Float32);
    }

    #[test]
    fn float64() {
        results_are_right(Proto::Simple, DataType::Float64);
    }

    #[test]
    fn bfloat16() {
        results_are_right(Proto::Simple, DataType::Bfloat16);
    }

    #[test]
    fn float8e4m3() {
        results_are_right(Proto::Simple, DataType::Float8e4m3);
    }

    #[test]
    fn float8e5m2() {
        results_are_right(Proto::Simple, DataType::Float8e5m2);
    }
}

mod ll {
    use crate::results_are_right;
    use nccl::plan::call::DataType;
    use nccl::plan::layout::Proto;

    #[test]
    fn int8() {
        results_are_right(Proto::Ll, DataType::Int8);
    }

    #[test]
    fn uint8() {
        results_are_right(Proto::Ll, DataType::Uint8);
    }

    #[test]
    fn int32() {
        results_are_right(Proto::Ll, DataType::Int32);
    }

    #[test]
    fn uint32() {
        results_are_right(Proto::Ll, DataType::Uint32);
    }

    #[test]
    fn int64() {
        results_are_right(Proto::Ll, DataType::Int64);
    }

    #[test]
    fn uint64() {
        results_are_right(Proto::Ll, DataType::Uint64);
    }

    #[test]
    fn float16() {
        results_are_right(Proto::Ll, DataType::Float16);
    }

    #[test]
    fn float32() {
        results_are_right(Proto::Ll, DataType::Float32);
    }

    #[test]
    fn float64() {
        results_are_right(Proto::Ll, DataType::Float64);
    }

    #[test]
    fn bfloat16() {
        results_are_right(Proto::Ll, DataType::Bfloat16);
    }

    #[test]
    fn float8e4m3() {
        results_are_right(Proto::Ll, DataType::Float8e4m3);
    }

    #[test]
    fn float8e5m2() {
        results_are_right(Proto::Ll, DataType::Float8e5m2);
    }
}

/// The tests above, by their names: nothing may be missing when a type or a protocol is added.
#[test]
fn nothing_is_left_out() {
    use nccl::plan::call::DataType;
    use nccl::plan::layout::Proto;
    let text = include_str!("sweep.rs");
    for (proto, datatype) in Proto::HOST.into_iter().flat_map(|proto| DataType::ALL.map(|datatype| (proto, datatype))) {
        let call = format!("results_are_right(Proto::{proto:?}, DataType::{datatype:?});");
        assert!(text.contains(&call), "{call}");
    }
}
