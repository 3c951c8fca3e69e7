"""Section: the kind of table that all settings are."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False
    )


def meanings(section: type[Section]) -> dict[str, str]:
    """The text that stands below each of its keys in the source, by key.

    Pydantic can keep these texts (use_attribute_docstrings), and then parses the source whenever a
    program starts; hardly one shows them.
    """
    import ast
    import inspect

    tree = ast.parse(inspect.getsource(section)).body[0]
    assert isinstance(tree, ast.ClassDef)
    texts = {}
    for key, text in zip(tree.body, tree.body[1:], strict=False):
        match key, text:
            case ast.AnnAssign(ast.Name(name)), ast.Expr(ast.Constant(str(said))):
                texts[name] = inspect.cleandoc(said)
    return texts
