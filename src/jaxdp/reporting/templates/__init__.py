"""The templates of the report's page.

Only here do values become HTML or SVG, and every value is escaped.
"""

import jinja2
from markupsafe import Markup

_ENVIRONMENT = jinja2.Environment(
    loader=jinja2.PackageLoader("jaxdp.reporting"),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=jinja2.StrictUndefined,
)


def render(template: str, **values: object) -> Markup:
    """Returns a template filled with values, which are escaped unless they come from another
    template.
    """
    return Markup(_ENVIRONMENT.get_template(template).render(values))
