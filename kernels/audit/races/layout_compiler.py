"""The process behind `access_layouts.py`: a line of JSON in names a kernel with its arguments, one out has TTGIR."""

import importlib
import json
import sys
from typing import Any


def specialised(kernel: Any, described: dict[str, Any]) -> tuple[dict[str, str], dict[Any, Any], dict[Any, Any]]:
    """Signature, constants and hints of divisibility, as Triton's launcher would give them."""
    signature: dict[str, str] = {}
    constants: dict[Any, Any] = {}
    hints: dict[Any, Any] = {}
    for index, parameter in enumerate(kernel.params):
        argument = described[parameter.name]
        aligned = not (parameter.do_not_specialize or getattr(parameter, "do_not_specialize_on_alignment", False))
        if "pointer" in argument:
            signature[parameter.name] = f"*{argument['pointer']}"
            divisible = argument["aligned"]
        else:
            value = argument["value"]
            number = isinstance(value, int) and not isinstance(value, bool)
            if parameter.is_constexpr or value is None or (number and value == 1 and not parameter.do_not_specialize):
                signature[parameter.name] = "constexpr"
                constants[(index,)] = value
                continue
            signature[parameter.name] = ("i32" if abs(value) < 2**31 else "i64") if number else _type(value)
            divisible = number and value % 16 == 0
        if aligned and divisible:
            hints[(index,)] = [["tt.divisibility", 16]]
    return signature, constants, hints


def _type(value: Any) -> str:
    return "i1" if isinstance(value, bool) else "fp32"


def ttgir_of(request: dict[str, Any]) -> str:
    from triton._C.libtriton import ir
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler.compiler import make_backend

    kernel = getattr(importlib.import_module(request["module"]), request["kernel"])
    signature, constants, hints = specialised(kernel, request["arguments"])
    source = ASTSource(kernel, signature, constexprs=constants, attrs=hints)
    target = GPUTarget(*request["target"])
    backend = make_backend(target)
    options = backend.parse_options({**request["options"], **source.parse_options()})
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    stages: dict[str, Any] = {}
    try:
        backend.add_stages(stages, options, source.language)
    except (AttributeError, TypeError):  # before Triton 3.5
        backend.add_stages(stages, options)
    implementation, modules = backend.get_codegen_implementation(options), backend.get_module_map()
    try:
        module = source.make_ir(target, options, implementation, modules, context)
    except TypeError:  # before Triton 3.5
        module = source.make_ir(options, implementation, modules, context)
    metadata = {"hash": "", "target": target, **options.__dict__}
    for stage in ("ttir", "ttgir"):
        module = stages[stage](module, metadata)
    return str(module)


def main() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr  # a kernel's module may print
    for line in sys.stdin:
        try:
            answer = {"ttgir": ttgir_of(json.loads(line))}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
