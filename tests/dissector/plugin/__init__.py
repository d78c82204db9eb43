"""A made-up protocol that is dissected by nothing but what lies in this folder."""
